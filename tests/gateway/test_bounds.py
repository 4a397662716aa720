"""What one client may cost the gateway in bytes and requests: raw sockets that send too much or too slowly."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from longrein.engines.base import EngineRequest
from longrein.gateway.settings import HttpBounds
from longrein.types import I32
from tests.gateway.held import Held
from tests.gateway.raw import BODY, Raw, assert_alive, assert_reads_in_every_dialect, rebound
from tests.gateway.rig import PATIENCE_S, Rig, renderer, rig, rig_of, say, until
from tests.gateway.tongues import Tongue, in_every_tongue


@in_every_tongue
async def test_body_that_does_not_arrive_is_a_408(tongue: Tongue) -> None:
    async with rig([say("fine")], http=HttpBounds(body_timeout_s=0.1)) as r, Raw(r) as raw:
        client = await raw.connect()
        await client.send(raw.head(99, tongue.path) + b"half")
        status, headers, body = await client.answer()
        assert status == 408 and tongue.refusal(json.loads(body)) and headers["retry-after"] == "1"
        assert await client.to_the_end() == b"", "closed: its rest is no request"
        rebound(r, HttpBounds())
        await assert_alive(r)
        assert (await r.gateway.close_session("s")).counters["refused_request_timeout"] == 1


async def test_body_that_trickles_in_has_one_time_limit_in_all() -> None:
    async with rig([say("fine")], http=HttpBounds(body_timeout_s=0.2)) as r, Raw(r) as raw:
        client = await raw.connect()
        await client.send(raw.head(9999))
        async with asyncio.timeout(PATIENCE_S):
            # A limit between one piece and the next would never be reached.
            while not client.reader._buffer:  # type: ignore[attr-defined]
                with suppress(ConnectionError):
                    await client.send(b" ")
                await asyncio.sleep(0.02)
        assert (await client.answer())[0] == 408


async def test_body_of_a_refused_request_is_not_read_for_ever() -> None:
    async with rig([say("fine")]) as r, Raw(r) as raw:
        client = await raw.connect()
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n")
        assert (await client.answer())[0] == 401
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 900:
                await client.send(b" " * 1_000_000)
                sent += 1
        assert sent < 50
        await assert_alive(r)


async def test_head_that_does_not_arrive_is_a_408() -> None:
    async with rig([say("fine")]) as r, Raw(r) as raw:
        second = await raw.connect(raw.head(len(BODY)) + BODY)
        assert (await second.answer())[0] == 200
        rebound(r, HttpBounds(header_timeout_s=0.1))
        await second.send(raw.head(5)[:40])
        silent, slow = await raw.connect(), await raw.connect(raw.head(5)[:40])
        for client in (silent, slow, second):
            status, headers, body = await client.answer()
            assert status == 408 and headers["connection"] == "close"
            assert_reads_in_every_dialect(body, "request_timeout")
            assert await client.to_the_end() == b""
        rebound(r, HttpBounds())
        await assert_alive(r)


async def test_pooled_connection_outlives_the_header_timeout() -> None:
    async with rig([say("fine")]) as r, Raw(r) as raw:
        client = await raw.connect(raw.head(len(BODY)) + BODY)
        assert (await client.answer())[0] == 200
        rebound(r, HttpBounds(header_timeout_s=0.1))
        for _ in range(2):
            await asyncio.sleep(0.3)
            # A head that comes whole starts no clock.
            await client.send(raw.head(len(BODY)) + BODY)
            assert (await client.answer())[0] == 200


FLOODS: dict[str, tuple[bytes, int]] = {
    "request line": (b"POST /" + b"a" * 200_000, 431),
    "one header": (b"GET / HTTP/1.1\r\nx: " + b"a" * 200_000, 431),
    "headers without end": (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200, 431),
    "whole head": (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "header name": (b"GET / HTTP/1.1\r\n" + b"a" * 200_000, 431),
    "not HTTP": (b"\x00\x01garbage\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "no path": (b"GET  HTTP/1.1\r\n\r\n", 400),
    "bytes in the path": (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
    "two lengths": (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
    "length and chunks": (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
}


@pytest.mark.parametrize("case", FLOODS)
async def test_head_that_is_too_large_or_none(case: str) -> None:
    flood, expected = FLOODS[case]
    async with rig([say("fine")]) as r, Raw(r) as raw:
        client = await raw.connect()
        await client.send(flood)
        status, headers, body = await client.answer()
        assert status == expected and headers["connection"] == "close"
        assert_reads_in_every_dialect(body, "headers_too_large" if expected == 431 else "bad_http")
        await assert_alive(r)


@pytest.mark.parametrize("part", [b"1;" + b"e" * 70_000, b"0\r\nx: " + b"t" * 70_000, b"1\r\na\r\n" * 20_000])
async def test_what_is_hidden_between_and_behind_chunks_is_bounded(part: bytes) -> None:
    """Extensions, trailers, and chunks so small that they are mostly sizes."""
    async with rig([say("fine")]) as r, Raw(r) as raw:
        client = await raw.connect()
        head = f"POST /{r.endpoint.api_key}/v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.send(head.encode() + b"1\r\n \r\n")
        await asyncio.sleep(0.02)
        await client.send(part)
        await asyncio.sleep(0.02)
        with suppress(ConnectionError):
            await client.send(part)
        status, _, body = await client.answer()
        assert status == 431
        assert_reads_in_every_dialect(body, "headers_too_large")
        await assert_alive(r)


async def test_ordinary_chunks_are_no_flood() -> None:
    async with rig([say("fine")]) as r, Raw(r) as raw:
        client = await raw.connect()
        text = json.dumps({"messages": [{"role": "user", "content": "x" * 7000}]}).encode()
        head = f"POST /{r.endpoint.api_key}/v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = [text[at : at + 16] for at in range(0, len(text), 16)]
        await client.send(head.encode() + b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n")
        assert (await client.answer())[0] == 200


class OneHeld(Held):
    """Only the session ``s`` waits."""

    async def reply(self, request: EngineRequest) -> I32:
        return await super().reply(request) if request.conversation_id == "s" else renderer().encode_reply(say("mine"))


@in_every_tongue
async def test_requests_of_one_session_at_once(tongue: Tongue) -> None:
    script = OneHeld()
    async with rig_of(script, http=HttpBounds(max_requests=2)) as r:
        other = r.gateway.open_session("other")
        asking = [asyncio.create_task(tongue.ask(r, "go")) for _ in range(2)]
        await until(lambda: r.gateway._keys.session("s").counters["coalesced"])
        heard = await tongue.ask(r, "go")
        assert heard.status == 429 and tongue.refuses(heard)
        assert heard.headers["retry-after"] == "1" and "x-should-retry" not in heard.headers
        elsewhere = Rig(r.gateway, r.engine, other)
        assert (await tongue.ask(elsewhere, "go")).status == 200, "one session's crowd is no other's"
        script.go.set()
        assert [heard.status for heard in await asyncio.gather(*asking)] == [200, 200]
        assert (await tongue.ask(r, "more")).status == 200
        assert (await r.gateway.close_session("s")).counters["refused_rate_limit_exceeded"] == 1
