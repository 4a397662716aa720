"""What a task source is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from longrein.types import Task

Split = Literal["train", "test"]


class TaskSource(Protocol):
    """Where tasks come from. The same arguments give the same tasks."""

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """``count`` tasks of a split. Raises :class:`~longrein.errors.TaskError` naming every bad task."""
        ...
