"""Requests at random, from our own description and from what agents really sent, sound and spoiled.

Whatever comes in: no 5xx of ours, every refusal in its dialect's form, nothing of one session in another's answers or
trace, memory that does not grow, and a gateway that still serves the next good request.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.gateway.settings import HttpBounds
from tests.gateway.fuzzing import WITNESS, Chatter, Fuzzer, Sent
from tests.gateway.openapi import conforms, document
from tests.gateway.raw import rebound
from tests.gateway.rig import PATIENCE_S, Rig, rig_of, until
from tests.gateway.tongues import TONGUES

ROOT = Path(__file__).parents[2]
REQUESTS_A_SESSION = 200
AT_ONCE = 8
CONNECTIONS_AT_ONCE = 32
STATUS = re.compile(rb"HTTP/1\.1 (?!100)(\d{3}) ")
MARK = re.compile(r"<<([\w-]+)>>")


class Got(msgspec.Struct, frozen=True, kw_only=True):
    """Its answer; no status where the client did not wait for it."""

    status: int
    body: bytes


class Fuzz:
    """Sends requests to one gateway, in-process, and checks each answer."""

    def __init__(self, r: Rig, random: Random) -> None:
        self.rig = r
        self.random = random
        self.fuzzer = Fuzzer(random)
        self.statuses: Counter[int] = Counter()

    async def session(self, session_id: str, requests: int) -> None:
        """``AT_ONCE`` clients of one session."""
        secret = self.rig.gateway.open_session(session_id).api_key
        share, more = divmod(requests, AT_ONCE)
        shares = [share + (at < more) for at in range(AT_ONCE)]
        await asyncio.gather(*[self._client(session_id, secret, count) for count in shares])
        record = await self.rig.gateway.close_session(session_id)
        assert record.failure is None
        assert all(call.reply is not None and call.completion.token_ids.size for call in record.trace.calls)
        self.rig.engine.requests.clear()
        self.rig.engine.completions.clear()

    async def _client(self, session_id: str, secret: str, requests: int) -> None:
        for _ in range(requests):
            sent = self.fuzzer.request()
            patience = 10_000 if self.random.random() < 0.97 else self.random.randrange(6)
            got = await ask(self.rig, secret, sent, patience)
            self.statuses[got.status] += 1
            check(session_id, sent, got)


async def ask(r: Rig, secret: str, sent: Sent, patience: int) -> Got:
    """One request by ASGI. After ``patience`` turns of the loop the client hangs up."""
    start: dict[str, Any] = {}
    parts: list[bytes] = []
    hung_up = asyncio.Event()
    bodies = [sent.body[: len(sent.body) // 2], sent.body[len(sent.body) // 2 :]]

    async def receive() -> dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(0), "more_body": bool(bodies)}
        await hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message["body"])

    async def lose_patience() -> None:
        for _ in range(patience):
            await asyncio.sleep(0)
        hung_up.set()

    headers = [(b"content-type", b"application/json"), (b"x-session-id", secret[:3].encode())]
    scope = {
        "type": "http",
        "method": sent.method,
        "path": f"/{secret}{sent.path}",
        "query_string": sent.query.encode(),
        "headers": headers,
    }
    if patience >= 10_000:
        await r.gateway._app(scope, receive, send)
    else:
        leaving = asyncio.create_task(lose_patience())
        await r.gateway._app(scope, receive, send)
        await leaving
    return Got(status=start.get("status", 0), body=b"".join(parts))


def check(session_id: str, sent: Sent, got: Got) -> None:
    assert got.status < 500, (sent, got)
    text = got.body.decode()
    assert set(MARK.findall(text)) <= {session_id}, (sent, got)
    if got.status == 0:
        assert text == ""
    elif got.status != 200:
        names = [sent.refusal] if sent.refusal else ["OpenAIError", "AnthropicError", "GoogleError"]
        error = json.loads(text)
        assert any(conforms(error, document()["components"]["schemas"][name]) for name in names), (sent, got)


async def fuzz(random: Random, requests: int) -> Counter[int]:
    """So many requests in sessions side by side, beside one session that must not notice."""
    async with rig_of(Chatter(), context_length=20_000, max_tokens=400, abandon_grace_s=0.01) as r:
        witness = TONGUES["chat"]
        for text in ("one", "two"):
            await witness.ask(r, text)
        before = r.trace()
        fuzz = Fuzz(r, random)
        done = 0
        while done < requests:
            counts = [min(REQUESTS_A_SESSION, requests - done), min(REQUESTS_A_SESSION, requests - done) // 2]
            await asyncio.gather(*[fuzz.session(f"f{done}-{at}", count) for at, count in enumerate(counts)])
            done += sum(counts)
        assert r.trace() == before
        heard = await witness.ask(r, "still there?")
        assert heard.status == 200 and f"<<{WITNESS}>>" in heard.text
        return fuzz.statuses


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_hundred_requests_at_random(seed: int) -> None:
    asyncio.run(fuzz(Random(seed), 100))


def wire(secret: str, sent: Sent, random: Random) -> bytes:
    """As HTTP. The head is part of what may be spoiled."""
    query = f"?{sent.query}" if sent.query else ""
    key = random.choice((f"Authorization: Bearer {secret}", f"x-api-key: {secret}", f"x-goog-api-key: {secret}"))
    path = quote(f"{random.choice(('', f'/{secret}'))}{sent.path}", safe="/:") + query
    length = random.choice((f"Content-Length: {len(sent.body)}", f"Content-Length: {len(sent.body)}", "Upgrade: h2c"))
    head = f"{sent.method} {path} HTTP/1.1\r\nHost: x\r\n{key}\r\nExpect: {random.choice(('', '100-continue'))}\r\n"
    return f"{head}Connection: close\r\n{length}\r\n\r\n".encode() + sent.body


async def converse(port: int, data: bytes) -> bytes:
    """Send it, in two pieces, and read until the gateway closes, or has answered and waits for more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    parts: list[bytes] = []
    try:
        for piece in (data[: len(data) // 3], data[len(data) // 3 :]):
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(PATIENCE_S) as patience:
            while part := await reader.read(1 << 16):
                parts.append(part)
                patience.reschedule(asyncio.get_running_loop().time() + 0.4)
    except TimeoutError:
        assert parts, (data, "neither answered nor closed")
    except ConnectionError:
        pass
    finally:
        writer.close()
    return b"".join(parts)


async def fuzz_connections(random: Random, connections: int) -> Counter[int]:
    """Whole HTTP requests, spoiled as bytes, on sockets."""
    bounds = HttpBounds(header_timeout_s=0.2, body_timeout_s=0.2, max_header_bytes=240)
    statuses: Counter[int] = Counter()
    async with rig_of(
        Chatter(), context_length=20_000, max_tokens=400, abandon_grace_s=0.01, max_calls=10**6, http=bounds
    ) as r:
        fuzzer = Fuzzer(random)

        async def one() -> None:
            sent = wire(r.endpoint.api_key, fuzzer.request(), random)
            if random.random() < 0.8:
                sent = fuzzer.maker.garbled(sent)
            heard = await converse(r.endpoint.port, sent)
            found = [int(status) for status in STATUS.findall(heard)]
            assert all(status < 500 for status in found), (sent, heard)
            statuses.update(found or [0])

        for _ in range(0, connections, CONNECTIONS_AT_ONCE):
            await asyncio.gather(*[one() for _ in range(CONNECTIONS_AT_ONCE)])
        rebound(r, HttpBounds())
        await until(lambda: not r.gateway._server._server.server_state.tasks)
        heard = await TONGUES["chat"].ask(r, "still there?")
        assert heard.status == 200 and f"<<{WITNESS}>>" in heard.text
        assert (await r.gateway.close_session("s")).failure is None
    return statuses


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_connections_at_random(seed: int) -> None:
    asyncio.run(fuzz_connections(Random(seed), 64))


@pytest.mark.agents
def test_a_hundred_thousand_requests_at_random_in_flat_memory() -> None:
    """In a process of its own: ``flat_memory.py`` says why."""
    command = [sys.executable, "-m", "tests.gateway.flat_memory"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)
    assert run.returncode == 0, run.stderr
    got = json.loads(run.stdout.splitlines()[-1])
    statuses = Counter({int(status): count for status, count in got["statuses"].items()})
    assert statuses.total() >= 100_000 and statuses[200] > 50_000 and statuses[400] > 20_000
    assert got["grown_mb"] < 20, f"{got['grown_mb']:.0f} MB more after 100,000 requests"


@pytest.mark.agents
async def test_thousands_of_connections_at_random() -> None:
    statuses = await fuzz_connections(Random(0), 4000)
    assert {200, 400, 401, 404, 405, 408, 431} <= set(statuses)
