"""Digests of messages that the requests of one session have in common.

Nearly every request begins with all that an earlier one said. Comparing messages is far cheaper than digesting them
again, and whoever compares equal is kept only once.
"""

from __future__ import annotations

from collections import deque
from operator import is_

import msgspec

from longrein.gateway import stitch
from longrein.types import Message, Tool

CONVERSATIONS = 4
"""So many may take turns in one session before one of them is digested anew."""


class Digested(msgspec.Struct, frozen=True, kw_only=True):
    """Messages and their digests, one a message: see :class:`~longrein.gateway.nodes.History`."""

    messages: tuple[Message, ...] = ()
    meanings: tuple[bytes, ...] = ()
    exacts: tuple[bytes, ...] = ()
    chains: tuple[bytes, ...] = ()

    def first(self, count: int) -> Digested:
        """The first ``count`` messages."""
        return Digested(
            messages=self.messages[:count],
            meanings=self.meanings[:count],
            exacts=self.exacts[:count],
            chains=self.chains[:count],
        )


class DigestedTools(msgspec.Struct, frozen=True, kw_only=True):
    """Tools and their digest."""

    tools: tuple[Tool, ...]
    written: bytes
    """As JSON: to Python ``1`` and ``True`` are equal, to a chat template they are not."""
    digest: bytes


class Recall:
    """What the latest requests of one session said. Bounded by ``CONVERSATIONS`` requests."""

    def __init__(self) -> None:
        self._latest: deque[Digested] = deque(maxlen=CONVERSATIONS)
        self._tools = DigestedTools(tools=(), written=msgspec.json.encode(()), digest=stitch.NO_TOOLS)

    def beginning(self, messages: tuple[Message, ...]) -> Digested:
        """The longest beginning of ``messages`` that an earlier request had."""
        best, common = Digested(), 0
        for digested in self._latest:
            alike = _alike(messages, digested.messages)
            if alike > common:
                best, common = digested, alike
        return best.first(common)

    def keep(self, digested: Digested) -> None:
        """Remember a request, in place of the one that it goes on from."""
        for at, earlier in enumerate(self._latest):
            # Common messages are the same objects, so this compares addresses.
            if len(earlier.messages) <= len(digested.messages) and all(map(is_, earlier.messages, digested.messages)):
                del self._latest[at]
                break
        self._latest.append(digested)

    def tools(self, tools: tuple[Tool, ...]) -> bytes:
        """The digest of a request's tools."""
        if tools is self._tools.tools:
            return self._tools.digest
        written = msgspec.json.encode(tools)
        digest = self._tools.digest if written == self._tools.written else stitch.tools_meaning(tools)
        self._tools = DigestedTools(tools=tools, written=written, digest=digest)
        return digest


def _alike(messages: tuple[Message, ...], others: tuple[Message, ...]) -> int:
    """How many messages they have in common before the first difference."""
    return next(
        (
            at
            for at, (ours, theirs) in enumerate(zip(messages, others, strict=False))
            if ours is not theirs and ours != theirs
        ),
        min(len(messages), len(others)),
    )
