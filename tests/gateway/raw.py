"""Raw connections to a gateway, for clients that no library would play."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import msgspec

from longrein.gateway.settings import HttpBounds
from tests.gateway.rig import PATIENCE_S, USER, Rig
from tests.gateway.tongues import TONGUES

LARGE = {"context_length": 10_000_000, "max_tokens": 9_000_000}
BODY = json.dumps({"messages": [USER]}).encode()


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def to_the_end(self) -> bytes:
        """Everything until the gateway closes."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """One response that has a length."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self._before_reset(lambda: self.reader.readuntil(b"\r\n\r\n"))).decode()
            status, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            length = int(headers["content-length"])
            return int(status.split()[1]), headers, await self._before_reset(lambda: self.reader.readexactly(length))

    async def _before_reset(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """A reset that follows an answer takes nothing of it away, but asyncio tells of the reset alone."""
        try:
            return await read()
        except ConnectionError:
            self.reader._exception = None  # type: ignore[attr-defined]
            self.reader.feed_eof()
            return await read()


class Raw:
    """Raw connections to one rig, all closed at the end."""

    def __init__(self, r: Rig) -> None:
        self.rig = r
        self.clients: list[Client] = []

    async def connect(self, first: bytes = b"") -> Client:
        """``first`` is on its way before the gateway has the connection."""
        connection = socket.create_connection(("127.0.0.1", self.rig.endpoint.port))
        connection.sendall(first)
        connection.setblocking(False)
        client = Client(*await asyncio.open_connection(sock=connection))
        self.clients.append(client)
        return client

    def head(self, length: int, path: str = "/v1/chat/completions", more: str = "") -> bytes:
        line = f"POST /{self.rig.endpoint.api_key}{path} HTTP/1.1\r\nHost: x\r\n{more}"
        return f"{line}Content-Length: {length}\r\n\r\n".encode()

    async def __aenter__(self) -> Raw:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            client.writer.transport.abort()


def rebound(r: Rig, bounds: HttpBounds) -> None:
    """From now on these are the gateway's bounds: a short time limit is for what a test waits to see cut, only."""
    r.gateway._server._server.config.http_protocol_class.bounds = bounds
    r.gateway._app._settings = msgspec.structs.replace(r.gateway._app._settings, http=bounds)


async def assert_alive(r: Rig) -> None:
    heard = await TONGUES["chat"].ask(r, "still there?")
    assert heard.status == 200, heard.text


def assert_reads_in_every_dialect(body: bytes, code: str) -> None:
    error = json.loads(body)
    assert error["type"] == "error" and error["error"]["code"] == code
    assert error["error"]["message"] and error["error"]["type"]


class Deaf:
    """A connection with small buffers at both ends, whose owner does not read of itself."""

    def __init__(self, r: Rig) -> None:
        # Accepted connections inherit it.
        r.gateway._server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", r.endpoint.port))

    def __enter__(self) -> socket.socket:
        return self.socket

    def __exit__(self, *_: object) -> None:
        self.socket.close()
