"""A model that answers once it is let go: what a test does meanwhile takes as long as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from longrein.engines.base import EngineRequest
from longrein.engines.scripted import Entry
from longrein.types import I32, Message
from tests.gateway.rig import Rig, renderer, rig_of, say, until
from tests.gateway.tongues import Tongue


class Held:
    """Says what it was told, then ``answer 2``, ..., once it is let go."""

    def __init__(self, first: Message | None = None) -> None:
        self.go = asyncio.Event()
        self.asked = 0
        self._first = first or say("answer 1")

    def tell(self, conversation_id: str, turns: Sequence[Entry]) -> None:
        raise NotImplementedError

    async def reply(self, request: EngineRequest) -> I32:
        self.asked += 1
        said = renderer().encode_reply(self._first if self.asked == 1 else say(f"answer {self.asked}"))
        await self.go.wait()
        return said


@asynccontextmanager
async def held(first: Message | None = None, **settings: Any) -> AsyncIterator[tuple[Rig, Held]]:
    script = Held(first)
    async with rig_of(script, **settings) as r:
        yield r, script


def waiting(r: Rig) -> int:
    """How many requests wait for a generation."""
    return sum(flight._waiting for flight in r.gateway._keys.session("s")._flights.values())


async def drop(tongue: Tongue, r: Rig, text: str) -> float:
    """Ask, and hang up while the engine works; the gateway has seen it on return. When it was, by the loop's clock."""
    asking = asyncio.create_task(tongue.ask(r, text))
    await until(lambda: waiting(r))
    hung_up_s = asyncio.get_running_loop().time()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: not waiting(r))
    return hung_up_s
