"""Answers that left for the kernel's buffers, and whose reader then hung up."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.gateway.held import held, waiting
from tests.gateway.raw import LARGE, Raw
from tests.gateway.rig import USER, rig, say, until
from tests.gateway.tongues import TONGUES

LONG = "y" * 2_500_000


def body_of(stream: bool) -> bytes:
    return json.dumps({"messages": [USER], "stream": stream}).encode()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_reads_a_part_and_hangs_up_gets_the_answer_when_it_asks_again(stream: bool) -> None:
    async with rig([say(LONG)], **LARGE) as r, Raw(r) as raw:
        client = await raw.connect()
        await client.send(raw.head(len(body_of(stream))) + body_of(stream))
        await client.reader.readexactly(1000)
        await until(lambda: r.trace().calls and r.trace().calls[0].delivered)
        client.writer.transport.abort()
        await until(lambda: not r.trace().calls[0].delivered)
        heard = await TONGUES["chat-stream" if stream else "chat"].ask(r, "go")
        assert LONG in heard.text and len(r.engine.requests) == 1
        assert [call.delivered for call in r.trace().calls] == [True]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_reads_everything_and_hangs_up_has_it(stream: bool) -> None:
    async with rig([say("short"), say("two")]) as r:
        heard = await TONGUES["chat-stream" if stream else "chat"].ask(r, "go")
        connections = r.gateway._server._server.server_state.connections
        await until(lambda: not connections)
        assert "short" in heard.text and r.trace().calls[0].delivered


async def test_one_of_two_readers_hangs_up() -> None:
    async with held(say(LONG), **LARGE) as (r, script), Raw(r) as raw:
        client = await raw.connect()
        await client.send(raw.head(len(body_of(False))) + body_of(False))
        other = asyncio.create_task(TONGUES["chat"].ask(r, "go"))
        await until(lambda: waiting(r) == 2)
        script.go.set()
        await client.reader.readexactly(1000)
        assert LONG in (await other).text
        await until(lambda: r.gateway._keys.session("s")._tree._nodes[0].readers == 2)
        client.writer.transport.abort()
        await until(lambda: r.gateway._keys.session("s")._tree._nodes[0].readers == 1)
        assert r.trace().calls[0].delivered and len(r.engine.requests) == 1
