"""What ranks other than 0 have in place of a rollout worker."""

from __future__ import annotations

import queue
from collections.abc import Collection, Mapping

from longrein.types import RolloutGroup


class NothingComes:
    """A buffer and a metrics queue."""

    def get(self, *, timeout: float) -> RolloutGroup:
        """Rank 0 asks."""
        raise queue.Empty

    def get_nowait(self) -> Mapping[str, float]:
        """Rank 0 asks."""
        raise queue.Empty


class WorkerElsewhere:
    """A :class:`~longrein.train.worker_protocol.RolloutWorker`."""

    rollout_buffer = NothingComes()
    metrics_queue = NothingComes()

    def resume(self, taken: Collection[str], policy_version: int, /) -> None:
        """Rank 0 does."""

    def start(self) -> None:
        """Rank 0 does."""

    def stop(self) -> None:
        """Rank 0 does."""

    def update_model_version(self, version: int, /) -> None:
        """Rank 0 does."""

    def check_health(self) -> None:
        """Rank 0 does."""
