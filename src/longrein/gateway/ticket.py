"""What a request that was let in holds: a claim on an answer.

Two kinds: one that waits for the engine (shared by identical requests in flight), and one for an answer that is there
already, because it never reached the agent or because nobody needs to sample it.
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

    def lost(self) -> None:
        """It was delivered, and the agent has not read it to its end."""
        ...

    def leave(self) -> None:
        """Stop waiting. Call it once, always; after the answer it does nothing."""
        ...


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and what is to be done when the agent has it."""

    reply: ChatReply
    on_delivered: Callable[[], None]
    on_lost: Callable[[], None] = lambda: None


class Flight:
    """One generation and how many requests wait for it. Some time after the last one left it is cancelled."""

    def __init__(self, task: asyncio.Task[Answered], grace_s: float, on_abandoned: Callable[[], None]) -> None:
        self.task = task
        self._waiting = 0
        self._grace_s = grace_s
        self._on_abandoned = on_abandoned
        self._timer: asyncio.TimerHandle | None = None
        task.add_done_callback(lambda _: self._stop_timer())

    def join(self) -> None:
        """One request more."""
        self._waiting += 1
        self._stop_timer()

    def leave(self) -> None:
        """One request fewer."""
        self._waiting -= 1
        if self._waiting == 0 and not self.task.done():
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._abandon)

    def _abandon(self) -> None:
        self._on_abandoned()
        self.task.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LiveTicket:
    """Waits for a :class:`Flight`."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        flight.join()

    async def answer(self) -> ChatReply:
        """See :class:`Ticket`."""
        # wait() rather than await: our own cancellation must not cancel what others wait for too.
        await asyncio.wait({self._flight.task})
        if self._flight.task.cancelled():
            raise GatewayRequestError("the session is over", status=503, code="session_closed")
        return self._flight.task.result().reply

    def delivered(self) -> None:
        """See :class:`Ticket`."""
        self._flight.task.result().on_delivered()

    def lost(self) -> None:
        """See :class:`Ticket`."""
        self._flight.task.result().on_lost()

    def leave(self) -> None:
        """See :class:`Ticket`."""
        self._flight.leave()


class ReadyTicket:
    """An answer that is there."""

    def __init__(self, answered: Answered) -> None:
        self._answered = answered

    async def answer(self) -> ChatReply:
        """See :class:`Ticket`."""
        return self._answered.reply

    def delivered(self) -> None:
        """See :class:`Ticket`."""
        self._answered.on_delivered()

    def lost(self) -> None:
        """See :class:`Ticket`."""
        self._answered.on_lost()

    def leave(self) -> None:
        """Nothing waits."""
