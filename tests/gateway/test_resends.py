"""Clients that give up and ask again do not double the work, in any dialect; and what they wait for looks alive."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest

from tests.gateway.held import drop, held, waiting
from tests.gateway.rig import PATIENCE_S, until
from tests.gateway.tongues import TONGUES, Tongue, in_every_tongue

KEEP_ALIVES = {
    "chat-stream": ": keep-alive\n\n",
    "responses-stream": ": keep-alive\n\n",
    "messages-stream": "event: ping\n",
    "gemini-stream": "\n",
}


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
    grace_s = 0.1
    async with held(abandon_grace_s=grace_s) as (r, script):
        hung_up_s = await drop(tongue, r, "go")
        await until(lambda: r.engine.cancelled)
        assert asyncio.get_running_loop().time() - hung_up_s >= grace_s
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
    async with held(abandon_grace_s=3600.0) as (r, _):
        await drop(TONGUES["chat"], r, "go")
        began = time.monotonic()
        await r.gateway.close_session("s")
        assert time.monotonic() - began < PATIENCE_S and len(r.engine.cancelled) == 1


@pytest.mark.parametrize("name", KEEP_ALIVES)
async def test_stream_begins_at_once_and_stays_alive(name: str) -> None:
    tongue, alive = TONGUES[name], KEEP_ALIVES[name].encode()
    async with held(keep_alive_s=0.02) as (r, script), aiohttp.ClientSession() as http:
        url = f"{r.endpoint.base_url}{tongue.path}"
        async with http.post(url, data=json.dumps(tongue.body("go")).encode()) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(3):
                    assert (await response.content.readany()).startswith(alive)
            script.go.set()
            assert b"answer 1" in await response.read()
