"""The head of an answer leaves with its body, or on its own when no body follows at once."""

from __future__ import annotations

import asyncio

from longrein.gateway.head import HeadedTransport

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Recorded(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.events.append(bytes(data))

    def close(self) -> None:
        self.events.append("close")

    def abort(self) -> None:
        self.events.append("abort")


def made() -> tuple[HeadedTransport, list[bytes | str]]:
    inner = Recorded()
    return HeadedTransport(inner, asyncio.get_running_loop()), inner.events


async def test_head_and_body_are_one_write() -> None:
    transport, events = made()
    for _ in range(2):
        transport.write(HEAD)
        transport.write(b"body")
    await asyncio.sleep(0)
    assert events == [HEAD + b"body"] * 2


async def test_a_head_that_nothing_follows_leaves_at_the_end_of_the_turn() -> None:
    transport, events = made()
    transport.write(HEAD)
    assert events == []
    await asyncio.sleep(0)
    assert events == [HEAD]
    transport.write(b"event")
    assert events == [HEAD, b"event"]


async def test_what_was_held_leaves_before_the_connection_closes() -> None:
    transport, events = made()
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert events == [HEAD, "close"]


async def test_nothing_leaves_after_an_abort() -> None:
    transport, events = made()
    transport.write(HEAD)
    transport.abort()
    await asyncio.sleep(0)
    assert events == ["abort"]


async def test_a_body_that_looks_like_a_head_is_not_lost() -> None:
    transport, events = made()
    transport.write(HEAD)
    transport.write(HEAD)
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert events == [HEAD + HEAD, HEAD]
