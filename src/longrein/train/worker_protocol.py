"""What the trainer asks of a rollout worker. ``HarnessRolloutWorker`` satisfies it without knowing of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from longrein.types import RolloutGroup


class RolloutBuffer(Protocol):
    """Finished groups, each with rewards and advantages. A ``multiprocessing.Queue`` is one."""

    def get(self, *, timeout: float) -> RolloutGroup:
        """Take the next group. A group taken is used up, whether or not it trains.

        Raises:
            queue.Empty: nothing came within ``timeout`` seconds.
            WorkerError: nothing will come any more.
        """
        ...


class MetricsQueue(Protocol):
    """What the worker measured, as flat name -> number mappings. A ``multiprocessing.Queue`` is one."""

    def get_nowait(self) -> Mapping[str, float]:
        """Take the next mapping.

        Raises:
            queue.Empty: there is none.
        """
        ...


class RolloutWorker(Protocol):
    """Makes rollouts while the trainer trains, in a process of its own or not.

    A worker may also expose its settings, see :mod:`longrein.train.agreement`; the trainer then compares them.
    """

    @property
    def rollout_buffer(self) -> RolloutBuffer:
        """Where finished groups come out."""
        ...

    @property
    def metrics_queue(self) -> MetricsQueue:
        """Where the worker's own measurements come out; drained once a step."""
        ...

    def resume(self, taken: Collection[str], policy_version: int, /) -> None:
        """Before ``start``, in a run that goes on from a checkpoint of ``policy_version``.

        Groups whose ids are in ``taken`` are used up and never come again. A finished group that is not, and that
        weights up to this version sampled, comes first; then those that are still to be made, in their order.
        """
        ...

    def start(self) -> None:
        """Begin to make rollouts. Raises :class:`~longrein.errors.WorkerError` when it cannot."""
        ...

    def stop(self) -> None:
        """End everything that was started. May be called twice, and without a start."""
        ...

    def update_model_version(self, version: int, /) -> None:
        """The engine now samples with this policy version, which is the number of steps taken."""
        ...

    def check_health(self) -> None:
        """Raises :class:`~longrein.errors.WorkerError` when the worker is dead; called about once a second."""
        ...
