"""The queue between rollout worker and trainer, and the rule that bounds staleness by admission."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import SpawnContext
from typing import Any

import msgspec

from longrein.types import RolloutGroup


class AdmissionRule(msgspec.Struct, frozen=True, kw_only=True):
    """How many groups may be under way (running or waiting in the queue).

    A group that starts while fewer than ``(max_staleness + 1) * groups_per_step`` are ahead of it is trained at most
    ``max_staleness`` steps later, unless it is overtaken; the trainer then drops it, for the bound holds for what is
    *trained*. Groups the trainer has taken for the step in progress still belong to the current version.
    """

    groups_per_step: int
    max_staleness: int

    def admits(self, *, under_way: int, taken_this_version: int, trainer_waits: bool) -> bool:
        """Whether one more group may start now."""
        reserved = min(taken_this_version, self.groups_per_step)
        bound = (self.max_staleness + 1) * self.groups_per_step - reserved
        # A waiting trainer that dropped groups needs one more, whatever the count says.
        return under_way < max(bound, 1 if trainer_waits else 0)


class Ledger:
    """Counters shared by both processes: what was taken, and whether the trainer waits."""

    def __init__(self, context: SpawnContext) -> None:
        self._taken: Any = context.Value("q", 0)
        self._waiting: Any = context.Value("b", 0)

    @property
    def taken(self) -> int:
        """Groups the trainer took from the queue so far."""
        return int(self._taken.value)

    @property
    def waiting(self) -> bool:
        """The trainer waits for a group right now."""
        return bool(self._waiting.value)

    def note_taken(self) -> None:
        """One more group taken."""
        with self._taken.get_lock():
            self._taken.value += 1

    def note_waiting(self, waiting: bool) -> None:
        """The trainer begins or ends to wait."""
        self._waiting.value = int(waiting)


class RolloutBuffer:
    """Finished groups, oldest first, on their way to the trainer."""

    def __init__(self, context: SpawnContext) -> None:
        self.ledger = Ledger(context)
        self._queue: multiprocessing.Queue[RolloutGroup] = context.Queue()

    def put(self, group: RolloutGroup) -> None:
        """Hand a finished group over (rollout process)."""
        self._queue.put(group)

    def get(self, timeout: float) -> RolloutGroup:
        """The next finished group (trainer process); waits up to ``timeout`` seconds.

        Raises:
            queue.Empty: none came in time.
        """
        self.ledger.note_waiting(True)
        try:
            group = self._queue.get(timeout=timeout)
        finally:
            self.ledger.note_waiting(False)
        self.ledger.note_taken()
        return group

    def discard(self) -> None:
        """Let the process end although nobody will read what is left (rollout process)."""
        self._queue.cancel_join_thread()

    def close(self) -> None:
        """Drop what is left (trainer process). Nothing is read: a killed writer may have left half a group."""
        self._queue.close()
        self._queue.cancel_join_thread()
