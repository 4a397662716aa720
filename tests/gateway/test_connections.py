"""What one client may cost the gateway in connections and buffers, and that answers never mix on one connection."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from longrein.engines.scripted import Delay
from longrein.gateway.settings import HttpBounds
from tests.gateway.held import held
from tests.gateway.raw import BODY, LARGE, Deaf, Raw, assert_alive, assert_reads_in_every_dialect, rebound
from tests.gateway.rig import PATIENCE_S, USER, rig, say, until
from tests.gateway.tongues import TONGUES


async def test_connection_that_has_idled_longest_makes_room() -> None:
    turns = [say("fine"), say("fine"), Delay(seconds=0.3), say("slow")]
    async with rig(turns, http=HttpBounds(max_connections=3)) as r, Raw(r) as raw:
        old, new = await raw.connect(), await raw.connect()
        for client in (old, new):
            await client.send(raw.head(len(BODY)) + BODY)
            assert (await client.answer())[0] == 200
        busy = await raw.connect()
        await busy.send(raw.head(len(BODY)) + BODY)
        await until(lambda: len(r.engine.requests) == 3)
        fourth = await raw.connect()
        assert await old.to_the_end() == b""
        await fourth.send(raw.head(len(BODY)) + BODY)
        assert (await busy.answer())[0] == 200
        assert (await fourth.answer())[0] == 200
        await new.send(raw.head(len(BODY)) + BODY)
        assert (await new.answer())[0] == 200


async def test_connection_too_many_is_refused_while_none_idles() -> None:
    async with held(http=HttpBounds(max_connections=2)) as (r, _), Raw(r) as raw:
        for _ in range(2):
            await (await raw.connect()).send(raw.head(len(BODY)) + BODY)
        await until(lambda: r.gateway._keys.session("s").counters["coalesced"])
        third = await raw.connect()
        status, _, body = await third.answer()
        assert status == 503
        assert_reads_in_every_dialect(body, "too_many_connections")
        assert await third.to_the_end() == b""
        assert len(r.engine.requests) == 1 and not r.engine.cancelled


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_does_not_read_is_cut_and_its_answer_kept_for_the_next(stream: bool) -> None:
    long = "x" * 400_000
    options: dict[str, Any] = {"http": HttpBounds(write_timeout_s=0.2), **LARGE}
    async with rig([say(long)], **options) as r, Raw(r) as raw:
        body = json.dumps({"messages": [USER], "stream": stream}).encode()
        with Deaf(r) as deaf:
            deaf.sendall(raw.head(len(body)) + body)
            await until(lambda: r.trace().calls)
            connections = r.gateway._server._server.server_state.connections
            await until(lambda: not connections)
            assert [call.delivered for call in r.trace().calls] == [False]
        rebound(r, HttpBounds())
        heard = await TONGUES["chat-stream" if stream else "chat"].ask(r, "go")
        assert long in heard.text
        assert [call.delivered for call in r.trace().calls] == [True]
        assert len(r.engine.requests) == 1


async def test_client_that_reads_slowly_gets_everything() -> None:
    long = "x" * 400_000
    async with rig([say(long)], http=HttpBounds(write_timeout_s=PATIENCE_S), **LARGE) as r, Raw(r) as raw:
        with Deaf(r) as slow:
            slow.sendall(raw.head(len(BODY)) + BODY)
            slow.setblocking(False)
            received = 0
            while received < len(long):
                chunk = await asyncio.get_running_loop().sock_recv(slow, 20_000)
                assert chunk, "cut"
                received += len(chunk)
                await asyncio.sleep(0.01)
            await until(lambda: [call.delivered for call in r.trace().calls] == [True])


async def test_pipelined_requests_are_answered_in_order_and_not_without_end() -> None:
    async with rig([say(f"answer {n}.") for n in range(9)]) as r, Raw(r) as raw:
        client = await raw.connect()
        bodies = [json.dumps({"messages": [{"role": "user", "content": str(n)}]}).encode() for n in range(4)]
        await client.send(b"".join(raw.head(len(body)) + body for body in bodies))
        for number in range(4):
            assert f"answer {number}.".encode() in (await client.answer())[2]
        flood = await raw.connect()
        await flood.send((raw.head(len(BODY)) + BODY) * 500)
        assert b"200 OK" not in await flood.to_the_end(), "cut, whatever was under way"
        await assert_alive(r)


async def test_garbage_behind_a_request_does_not_end_up_in_its_answer() -> None:
    async with held(keep_alive_s=0.02) as (r, script), Raw(r) as raw:
        client = await raw.connect()
        body = json.dumps({"messages": [USER], "stream": True}).encode()
        await client.send(raw.head(len(body)) + body)
        await client.reader.readuntil(b"keep-alive")
        await client.send(b"\x00garbage\r\n\r\n")
        rest = await client.to_the_end()
        assert b"HTTP/1.1 400" not in rest and b"[DONE]" not in rest
        script.go.set()
        assert (await TONGUES["chat-stream"].ask(r, "go")).status == 200


FLOOD = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
clients = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(800)]
print("there", flush=True)
time.sleep(600)
"""
FEW = """
import asyncio, resource, sys
from tests.gateway.rig import rig, say
from tests.gateway.tongues import TONGUES

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, 4096))
    async with rig([say("fine")]) as r:
        argv = (sys.executable, "-c", sys.argv[1], str(r.endpoint.port))
        flood = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        await flood.stdout.readline()
        print(len(r.gateway._server._server.server_state.connections))
        print((await TONGUES["chat"].ask(r, "still there?")).status)
        flood.kill()
        await flood.wait()

asyncio.run(asyncio.wait_for(main(), 300))
"""


async def test_file_descriptors_do_not_run_out() -> None:
    """In a process that may have 400, against one that opens 800 connections and sends nothing."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", FEW, FLOOD), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0 and b"Too many open files" not in err, err.decode()[-2000:]
    connections, status = out.split()
    assert int(connections) <= 200 + 32 and status == b"200"
