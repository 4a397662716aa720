"""The client before something that is no engine of this version: whoever waits is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from longrein.engines.base import EngineInfo
from longrein.engines.local import client as client_module
from longrein.engines.local import wire
from longrein.engines.local.client import LocalEngineSpec
from longrein.errors import EngineError
from tests.engines.local.reference import ids, request
from tests.waiting import until

HELLO = wire.pack(wire.Hello(info=EngineInfo(model="m", context_length=8, vocab_size=8)))
JUNK = {
    "not msgpack": b"\x05\x00\x00\x00GET /",
    "another frame": wire.pack(wire.Swap(policy_version=1)),
}


@asynccontextmanager
async def peer(folder: Path, first: bytes, then: bytes = b"") -> AsyncIterator[LocalEngineSpec]:
    """Says ``first`` at once, and ``then`` to whatever it is asked. Never hangs up."""

    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(first)
        while await reader.read(1 << 16):
            writer.write(then)

    path = str(folder / "s")
    server = await asyncio.start_unix_server(answer, path)
    try:
        yield LocalEngineSpec(socket_path=path, model="m")
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
async def test_an_answer_that_cannot_be_read_fails_whoever_waits_and_whoever_asks_later(
    tmp_path: Path, junk: bytes
) -> None:
    async with peer(tmp_path, HELLO, junk) as spec, asyncio.timeout(120):
        client = await spec.connect()
        for _ in range(2):
            with pytest.raises(EngineError, match="cannot read"):
                await client.generate(request("c", ids([1])))
        await client.close()


async def test_a_completion_whose_arrays_are_torn(tmp_path: Path) -> None:
    torn = wire.Done(
        call=0,
        token_ids=b"123",
        logprobs=b"",
        finish_reason="stop",
        min_policy_version=0,
        max_policy_version=0,
        prefill_tokens=0,
    )
    async with peer(tmp_path, HELLO, wire.pack(torn)) as spec, asyncio.timeout(120):
        client = await spec.connect()
        with pytest.raises(EngineError, match="cannot be read"):
            await client.generate(request("c", ids([1])))
        await client.close()


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
async def test_a_greeting_that_cannot_be_read(tmp_path: Path, junk: bytes) -> None:
    async with peer(tmp_path, junk) as spec, asyncio.timeout(120):
        with pytest.raises(EngineError, match="not an embedded engine of this version"):
            await spec.connect()


async def test_what_an_engine_has_no_room_for_waits_in_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MOST_AT_ONCE", 2)
    async with peer(tmp_path, HELLO) as spec, asyncio.timeout(120):
        client = await spec.connect()
        asked = [asyncio.create_task(client.generate(request(f"c{number}", ids([1])))) for number in range(4)]
        await until(lambda: sorted(client._pending) == [0, 1])
        asked[0].cancel()
        await until(lambda: sorted(client._pending) == [1, 2])
        await client.close()
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(ends[0], asyncio.CancelledError)
        assert all(isinstance(end, EngineError) for end in ends[1:]), "who waits for room is told too"
