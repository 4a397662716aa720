"""Servers of the same model: a conversation stays with one, so that its prefix is cached, unless that one is out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import msgspec

from longrein.engines.base import EngineRequest
from longrein.engines.vllm.routes import Route, Sampled
from longrein.engines.vllm.server import Server

AVOIDED_S = 5.0
"""How long nobody asks a server that was out, as long as another one answers."""


class Member(msgspec.Struct, kw_only=True):
    """A server and how it is asked."""

    server: Server
    route: Route
    model: str
    """What requests call the model: the server's name of it, or an adapter's."""
    out_until_s: float = 0.0

    async def sample(self, request: EngineRequest) -> Sampled:
        """Sample, watching that the server is well; see :meth:`~longrein.engines.vllm.server.Server.watched`."""
        return await self.server.watched(self.route.ask(self.server, self.model, request))


class Fleet:
    """All servers of a run. Keeps nothing a conversation: where it belongs follows from its id (rendezvous hashing)."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)

    def pick(self, conversation_id: str) -> Member:
        """The conversation's own server; its second, third, ... while that is out; its own if all are."""
        order = sorted(self.members, key=lambda member: _rank(member.server.url, conversation_id))
        now_s = time.monotonic()
        return next((member for member in order if member.out_until_s <= now_s), order[0])

    def lost(self, member: Member) -> bool:
        """Keep away from a server for a while; returns whether another one is left."""
        now_s = time.monotonic()
        member.out_until_s = now_s + AVOIDED_S
        return any(other.out_until_s <= now_s for other in self.members)


def _rank(url: str, conversation_id: str) -> bytes:
    return hashlib.blake2b(f"{url} {conversation_id}".encode(), digest_size=8).digest()
