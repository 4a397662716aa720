"""Clients that give up and ask again do not double the work, in any dialect; and what they wait for looks alive."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from longrein.engines.base import EngineRequest
from longrein.engines.scripted import Entry
from longrein.types import I32, Message
from tests.gateway.rig import Rig, renderer, rig_of, say, until
from tests.gateway.tongues import TONGUES, Tongue, in_every_tongue

KEEP_ALIVES = {
    "chat-stream": ": keep-alive\n\n",
    "responses-stream": ": keep-alive\n\n",
    "messages-stream": "event: ping\n",
    "gemini-stream": "\n",
}


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
async def held(**settings: Any) -> AsyncIterator[tuple[Rig, Held]]:
    script = Held()
    async with rig_of(script, **settings) as r:
        yield r, script


def waiting(r: Rig) -> int:
    """How many requests wait for a generation."""
    return sum(flight._waiting for flight in r.gateway._keys.session("s")._flights.values())


async def drop(tongue: Tongue, r: Rig, text: str) -> None:
    """Ask, and hang up while the engine works; the gateway has seen it on return."""
    asking = asyncio.create_task(tongue.ask(r, text))
    await until(lambda: waiting(r))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: not waiting(r))


@in_every_tongue
async def test_same_request_while_the_first_is_open_shares_its_answer(tongue: Tongue) -> None:
    async with held() as (r, script):
        asking = [asyncio.create_task(tongue.ask(r, "go")) for _ in range(2)]
        await until(lambda: waiting(r) == 2)
        script.go.set()
        assert all("answer 1" in heard.text for heard in await asyncio.gather(*asking))
        assert len(r.engine.requests) == len(r.trace().calls) == 1
        assert r.gateway._keys.session("s").counters["coalesced"] == 1


@in_every_tongue
async def test_same_request_after_the_first_was_dropped_joins_its_generation(tongue: Tongue) -> None:
    async with held() as (r, script):
        await drop(tongue, r, "go")
        again = asyncio.create_task(tongue.ask(r, "go"))
        await until(lambda: waiting(r))
        script.go.set()
        assert "answer 1" in (await again).text
        assert len(r.engine.requests) == 1 and not r.engine.cancelled
        assert [call.delivered for call in r.trace().calls] == [True]


@in_every_tongue
async def test_what_was_finished_while_nobody_waited_is_replayed(tongue: Tongue) -> None:
    async with held() as (r, script):
        await drop(tongue, r, "go")
        script.go.set()
        await until(lambda: r.trace().calls)
        assert [call.delivered for call in r.trace().calls] == [False]
        assert "answer 1" in (await tongue.ask(r, "go")).text
        assert [call.delivered for call in r.trace().calls] == [True]
        assert "answer 2" in (await tongue.ask(r, "go")).text, "delivered, and asked again: a fresh sibling"
        assert len(r.engine.requests) == 2


@in_every_tongue
async def test_generation_that_nobody_comes_back_for_is_cancelled(tongue: Tongue) -> None:
    async with held(abandon_grace_s=0.1) as (r, script):
        await drop(tongue, r, "go")
        assert not r.engine.cancelled
        await until(lambda: r.engine.cancelled)
        script.go.set()
        assert "answer 2" in (await tongue.ask(r, "go")).text
        record = await r.gateway.close_session("s")
        assert record.counters["cancelled"] == 1 and len(record.trace.calls) == 1


@in_every_tongue
async def test_another_request_does_not_wait_for_a_dropped_one(tongue: Tongue) -> None:
    async with held() as (r, script):
        await drop(tongue, r, "go")
        other = asyncio.create_task(tongue.ask(r, "something else"))
        await until(lambda: script.asked == 2)
        script.go.set()
        assert "answer 2" in (await other).text
        assert not r.engine.cancelled


async def test_closing_a_session_does_not_wait_for_the_grace() -> None:
    async with held() as (r, _):
        await drop(TONGUES["chat"], r, "go")
        began = time.monotonic()
        await r.gateway.close_session("s")
        assert time.monotonic() - began < 1 and len(r.engine.cancelled) == 1


@pytest.mark.parametrize("name", KEEP_ALIVES)
async def test_stream_begins_at_once_and_stays_alive(name: str) -> None:
    tongue, alive = TONGUES[name], KEEP_ALIVES[name].encode()
    async with held(keep_alive_s=0.02) as (r, script), aiohttp.ClientSession() as http:
        url = f"{r.endpoint.base_url}{tongue.path}"
        async with http.post(url, data=json.dumps(tongue.body("go")).encode()) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            async with asyncio.timeout(10):
                for _ in range(3):
                    assert (await response.content.readany()).startswith(alive)
            script.go.set()
            assert b"answer 1" in await response.read()
