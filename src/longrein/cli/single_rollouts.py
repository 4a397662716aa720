"""Rollouts that belong to no group of GRPO, on disk as every rollout is: demonstrations and held-out judgements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from longrein.store import RunStore
from longrein.types import Rollout, RolloutGroup, Task


class SingleRollouts:
    """Writes each rollout as a group of one, in the form of ``rollouts/``."""

    def __init__(self, folder: Path, tasks: Sequence[Task]) -> None:
        self._store = RunStore(folder)
        self._tasks = {task.task_id: task for task in tasks}

    def append(self, rollout: Rollout) -> None:
        """Write one rollout of one of the tasks."""
        task = self._tasks[rollout.task_id]
        self._store.append(RolloutGroup(group_id=rollout.rollout_id, task=task, rollouts=(rollout,)))
