"""The queue between rollout worker and trainer, and the rule that bounds staleness by admission."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from typing import Any

import msgspec

from longrein.errors import WorkerError
from longrein.rollout.pipe import Inbox
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
    """Numbers shared by both processes: what was taken, whether the trainer waits, when the worker last ran.

    Each has one writer, so there are no locks that a killed worker could leave locked.
    """

    def __init__(self, context: SpawnContext) -> None:
        self._taken: Any = context.Value("q", 0, lock=False)
        self._waiting: Any = context.Value("b", 0, lock=False)
        self._alive_at_s: Any = context.Value("d", time.monotonic(), lock=False)

    @property
    def taken(self) -> int:
        """Groups the trainer took from the queue so far."""
        return int(self._taken.value)

    @property
    def waiting(self) -> bool:
        """The trainer waits for a group right now."""
        return bool(self._waiting.value)

    @property
    def alive_at_s(self) -> float:
        """When the worker's event loop last ran, by ``time.monotonic``, which processes of one machine share."""
        return float(self._alive_at_s.value)

    def note_alive(self) -> None:
        """The worker's event loop runs now."""
        self._alive_at_s.value = time.monotonic()

    def note_taken(self) -> None:
        """One more group taken."""
        self._taken.value += 1

    def note_waiting(self, waiting: bool) -> None:
        """The trainer begins or ends to wait."""
        self._waiting.value = int(waiting)


class RolloutBuffer:
    """Finished groups, oldest first, as the trainer takes them.

    Args:
        inbox: where the rollout process sends them.
        ledger: told what is taken.
        explain_end: called when the pipe has ended; raises :class:`~longrein.errors.WorkerError` with the reason.
    """

    def __init__(self, inbox: Inbox, ledger: Ledger, explain_end: Callable[[], None]) -> None:
        self.ledger = ledger
        self._inbox = inbox
        self._explain_end = explain_end

    def get(self, timeout: float) -> RolloutGroup:
        """The next finished group; waits up to ``timeout`` seconds.

        Raises:
            queue.Empty: none came in time.
            WorkerError: the rollout worker died.
        """
        self.ledger.note_waiting(True)
        try:
            group: RolloutGroup = self._inbox.get(timeout)
        except EOFError as error:
            self._explain_end()
            raise WorkerError(f"the rollout worker hung up: {error}; see its output above and start again") from error
        finally:
            self.ledger.note_waiting(False)
        self.ledger.note_taken()
        return group

    def close(self) -> None:
        """Drop what is left."""
        self._inbox.close()


class MetricsQueue:
    """What the rollout process measured, as the trainer takes it."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def get_nowait(self) -> dict[str, float]:
        """The next mapping. Raises ``queue.Empty`` when there is none."""
        try:
            numbers: dict[str, float] = self._inbox.get(0.0)
        except EOFError:
            # Why it ended is told where groups are taken.
            raise queue.Empty from None
        return numbers

    def close(self) -> None:
        """Drop what is left."""
        self._inbox.close()
