"""Raw connections to a gateway, for clients that no library would play."""

from __future__ import annotations

import asyncio
import json
import socket

from tests.gateway.rig import USER, Rig
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
        async with asyncio.timeout(10):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """One response that has a length."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            return int(status.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))


class Raw:
    """Raw connections to one rig, all closed at the end."""

    def __init__(self, r: Rig) -> None:
        self.rig = r
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.rig.endpoint.port))
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
