"""Tokens as they are sampled, for the calls that somebody watches: one frame a step and connection."""

from __future__ import annotations

import msgspec
import numpy as np

from longrein.engines.local import wire
from longrein.engines.local.row import Ticket


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A frame and the connection it goes to."""

    connection: int
    frame: wire.Sampled


class Reports:
    """Which calls are watched, and what the present step sampled for them."""

    def __init__(self) -> None:
        self._watched: set[Ticket] = set()
        self._calls: dict[int, list[int]] = {}
        self._token_ids: dict[int, list[int]] = {}
        self._logprobs: dict[int, list[float]] = {}

    def watch(self, ticket: Ticket) -> None:
        """Report this call, which is about to come."""
        self._watched.add(ticket)

    def end(self, ticket: Ticket) -> None:
        """This call is over."""
        self._watched.discard(ticket)

    def add(self, ticket: Ticket, token_id: int, logprob: float) -> None:
        """The step sampled this token."""
        if ticket in self._watched:
            self._calls.setdefault(ticket.connection, []).append(ticket.call)
            self._token_ids.setdefault(ticket.connection, []).append(token_id)
            self._logprobs.setdefault(ticket.connection, []).append(logprob)

    def take(self, policy_version: int) -> list[Report]:
        """The step is over: what it sampled, all of it with these weights."""
        reports = [
            Report(
                connection=connection,
                frame=wire.Sampled(
                    calls=tuple(calls),
                    token_ids=np.array(self._token_ids[connection], dtype=np.int32).tobytes(),
                    logprobs=np.array(self._logprobs[connection], dtype=np.float32).tobytes(),
                    policy_version=policy_version,
                ),
            )
            for connection, calls in self._calls.items()
        ]
        self._calls.clear()
        self._token_ids.clear()
        self._logprobs.clear()
        return reports
