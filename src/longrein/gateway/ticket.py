"""What a request that was let in holds: a claim on an answer.

Three kinds: one that waits for the engine (shared by identical requests in flight), one for an answer that was
sampled but never reached the agent, and one for the answer after the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import ChatReply


class Ticket(Protocol):
    """A claim on an answer."""

    async def answer(self) -> ChatReply:
        """Wait for it.

        Raises:
            GatewayRequestError: the engine failed, the context is full, or the session was closed meanwhile.
        """
        ...

    def delivered(self) -> None:
        """The agent has the whole answer."""
        ...

    def leave(self) -> None:
        """Stop waiting. Call it once, always; after the answer it does nothing."""
        ...


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """An answer and the call that it is stored under."""

    reply: ChatReply
    call_id: int


class Flight:
    """One generation and how many requests wait for it; it is cancelled when nobody does."""

    def __init__(self, task: asyncio.Task[Answered], on_abandoned: Callable[[], None]) -> None:
        self.task = task
        self.waiting = 0
        self._on_abandoned = on_abandoned

    def leave(self) -> None:
        """One request fewer."""
        self.waiting -= 1
        if self.waiting == 0 and not self.task.done():
            self._on_abandoned()
            self.task.cancel()


class LiveTicket:
    """Waits for a :class:`Flight`."""

    def __init__(self, flight: Flight, mark_delivered: Callable[[int], None]) -> None:
        self._flight = flight
        self._mark_delivered = mark_delivered
        flight.waiting += 1

    async def answer(self) -> ChatReply:
        """See :class:`Ticket`."""
        # wait() rather than await: our own cancellation must not cancel what others wait for too.
        await asyncio.wait({self._flight.task})
        if self._flight.task.cancelled():
            raise GatewayRequestError("the session was closed", status=503, code="session_closed")
        return self._flight.task.result().reply

    def delivered(self) -> None:
        """See :class:`Ticket`."""
        self._mark_delivered(self._flight.task.result().call_id)

    def leave(self) -> None:
        """See :class:`Ticket`."""
        self._flight.leave()


class ReplayTicket:
    """Repeats a stored answer."""

    def __init__(self, answered: Answered, mark_delivered: Callable[[int], None]) -> None:
        self._answered = answered
        self._mark_delivered = mark_delivered

    async def answer(self) -> ChatReply:
        """See :class:`Ticket`."""
        return self._answered.reply

    def delivered(self) -> None:
        """See :class:`Ticket`."""
        self._mark_delivered(self._answered.call_id)

    def leave(self) -> None:
        """Nothing waits."""


class UnsampledTicket:
    """An answer that no engine gave and no trace holds."""

    def __init__(self, reply: ChatReply) -> None:
        self._reply = reply

    async def answer(self) -> ChatReply:
        """See :class:`Ticket`."""
        return self._reply

    def delivered(self) -> None:
        """Nothing to mark."""

    def leave(self) -> None:
        """Nothing waits."""
