"""One HTTP request and its response, over the three arguments of an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from longrein.errors import GatewayRequestError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# A body over the limit is read to its end, unkept, so that the client gets to read the refusal; up to this much.
DRAIN_BYTES = 64 * 1024 * 1024


class Exchange:
    """Reads a bounded body, notices that the client left, writes a response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send
        self._left: asyncio.Task[MutableMapping[str, Any]] | None = None
        self._started = False

    @property
    def bearer(self) -> str:
        """The key in ``Authorization: Bearer``; empty without one."""
        for name, value in self._headers:
            if name == b"authorization":
                scheme, _, key = value.decode("latin-1").partition(" ")
                return key.strip() if scheme.lower() == "bearer" else ""
        return ""

    async def body(self, limit: int) -> bytes:
        """The whole request body.

        Raises:
            GatewayRequestError: over ``limit`` bytes, or the client left before the end.
        """
        body = bytearray()
        size = 0
        more = True
        while more and size <= DRAIN_BYTES:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise GatewayRequestError("the client left", status=400, code="client_left")
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size <= limit:
                body += chunk
            more = bool(message.get("more_body", False))
        if size > limit:
            raise GatewayRequestError(f"the request body is over {limit} bytes", status=413, code="request_too_large")
        return bytes(body)

    def watch(self) -> None:
        """From now on notice when the client leaves. Call after :meth:`body`; pair with :meth:`unwatch`."""
        self._left = asyncio.ensure_future(self._receive())

    def unwatch(self) -> None:
        """Stop noticing."""
        if self._left is not None:
            self._left.cancel()

    @property
    def left(self) -> bool:
        """The client has gone away."""
        return self._left is not None and self._left.done()

    async def settle(self, answer: asyncio.Task[Any], timeout_s: float | None) -> bool:
        """Wait until there is an answer or no client; ``False`` when the time is up first."""
        waiting: set[asyncio.Task[Any]] = {answer} if self._left is None else {answer, self._left}
        done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    async def send_json(self, status: int, body: bytes) -> bool:
        """Send a whole response. Returns whether the client was there to take it."""
        if self._started:
            return False
        await self._head(status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))])
        return await self.finish(body)

    async def start_stream(self) -> None:
        """Send the head of an event stream."""
        await self._head(200, [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")])

    async def write(self, chunk: bytes) -> None:
        """Send a part of a stream."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self, chunk: bytes) -> bool:
        """Send the last part. Returns whether the client was there to take it."""
        # Two turns of the loop: one reads the socket's end of file, the other wakes who waits for it.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        there = not self.left
        await self._send({"type": "http.response.body", "body": chunk, "more_body": False})
        return there

    async def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
