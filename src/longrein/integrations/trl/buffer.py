"""TRL's rollout queue: groups are taken from the rollout process as samples are asked for, and not before."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from longrein.errors import BatchError
from longrein.integrations.trl.metrics import SampleMetrics
from longrein.integrations.trl.samples import GroupSamples, Sample, SampleRule, group_samples
from longrein.train.worker_protocol import RolloutBuffer
from longrein.types import RolloutGroup

EqualGroups = Literal["count", "replace"]
"""What becomes of a group of equal rewards.

``count``: delivered, with advantages of 0, as by TRL's own worker. ``replace``: left out, and the next one is taken
(DAPO's dynamic sampling, arXiv 2503.14476).
"""
REPLACED_IN_A_ROW = 10
"""So many groups of equal rewards in a row are replaced; the next one counts, so that training goes on."""
UNTRAINABLE_IN_A_ROW = 8
"""So many groups in a row without one trained token, and the reason is raised."""

Watch = Callable[[RolloutGroup, tuple[Sample, ...]], None]


class SampleBuffer:
    """What TRL's trainer sees of a ``queue.Queue``: ``get`` and ``qsize``.

    Args:
        groups: finished groups. One that is taken counts as trained for the admission of further ones.
        rule: how groups become samples.
        equal_groups: see :data:`EqualGroups`.
        metrics: told what was left out.
        watch: told of each group that is delivered, and its samples.
    """

    def __init__(
        self, groups: RolloutBuffer, rule: SampleRule, equal_groups: EqualGroups, metrics: SampleMetrics, watch: Watch
    ) -> None:
        self._groups = groups
        self._rule = rule
        self._equal_groups = equal_groups
        self._metrics = metrics
        self._watch = watch
        self._ready: deque[Sample] = deque()
        self._replaced_in_a_row = 0
        self._untrainable_in_a_row = 0
        self.taken: list[str] = []
        """Ids of the groups that were taken, delivered or not."""

    def get(self, timeout: float) -> Sample:
        """The next sample; waits up to ``timeout`` seconds.

        Raises:
            queue.Empty: none came in time.
            WorkerError: the rollout worker died.
            BatchError: one group after another has nothing to train on.
            TraceError: a rollout's trace is malformed.
        """
        deadline_s = time.monotonic() + timeout
        while not self._ready:
            self._take(self._groups.get(timeout=max(0.0, deadline_s - time.monotonic())))
        return self._ready.popleft()

    def qsize(self) -> int:
        """Samples of groups that were taken, which wait here. Groups that wait in the pipe are not counted."""
        return len(self._ready)

    def _take(self, group: RolloutGroup) -> None:
        self.taken.append(group.group_id)
        made = group_samples(group, self._rule)
        self._metrics.count(made.counts)
        if not made.samples:
            self._note_untrainable(group, made)
            return
        self._untrainable_in_a_row = 0
        if self._replaces(made):
            self._metrics.count({"replaced_groups": 1})
            return
        self._ready += made.samples
        self._watch(group, made.samples)

    def _replaces(self, made: GroupSamples) -> bool:
        replace = self._equal_groups == "replace" and made.equal and self._replaced_in_a_row < REPLACED_IN_A_ROW
        self._replaced_in_a_row = self._replaced_in_a_row + 1 if replace else 0
        return replace

    def _note_untrainable(self, group: RolloutGroup, made: GroupSamples) -> None:
        self._metrics.count({"untrainable_groups": 1})
        self._untrainable_in_a_row += 1
        if self._untrainable_in_a_row >= UNTRAINABLE_IN_A_ROW:
            reasons = ", ".join(f"{name} {number:.0f}" for name, number in made.counts.items() if number) or "no calls"
            raise BatchError(
                f"{self._untrainable_in_a_row} groups in a row have no token to train on; the last one, "
                f"{group.group_id} of task {group.task.task_id}: {reasons}. Look at its rollouts in the run directory."
            )
