"""Replies that wait to be sent."""

from __future__ import annotations

import msgspec

from longrein.engines.local import wire
from longrein.engines.local.row import Job, Ticket


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A reply and whose it is."""

    ticket: Ticket
    reply: wire.Reply


class Answers:
    """In the order in which they were given."""

    def __init__(self) -> None:
        self._waiting: list[Answer] = []

    def give(self, ticket: Ticket, reply: wire.Reply) -> None:
        """Answer a request."""
        self._waiting.append(Answer(ticket=ticket, reply=reply))

    def fail(self, job: Job, message: str) -> None:
        """Answer one that the engine cannot finish."""
        self.give(job.ticket, wire.Failed(call=job.ticket.call, message=message))

    def take(self) -> list[Answer]:
        """Those since the last call."""
        answers, self._waiting = self._waiting, []
        return answers
