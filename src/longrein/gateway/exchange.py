"""One HTTP request and its response, over the three arguments of an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from longrein.errors import GatewayRequestError
from longrein.gateway.resets import SCOPE_KEY, Resets

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# A body over the limit is read to its end, unkept, so that the client gets to read the refusal; up to this much.
DRAIN_BYTES = 64 * 1024 * 1024
# More than this may wait in our own buffers, so that sending it does not mean that it left.
BUFFERED_BYTES = 64 * 1024
# Refusals that the same request may overcome a moment later. Whatever else we refuse, we refuse again: clients' own
# retries, which take minutes, are for faults that we have already tried to mend.
PASSING = (408, 429)
# Refusals in the middle of a request, whose rest nobody will read.
UNREAD = (408, 413)


class Exchange:
    """Reads a bounded body, notices that the client left, writes a response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode("latin-1")
        self.headers = _headers(scope["headers"])
        """Names in lower case; of a repeated header the first."""
        self.resets: Resets = scope.get(SCOPE_KEY) or Resets()
        """Of the connection."""
        self._receive = receive
        self._send = send
        self._left: asyncio.Task[MutableMapping[str, Any]] | None = None
        self._started = False

    @property
    def api_key(self) -> str:
        """The key, where any dialect's client puts it; empty without one."""
        scheme, _, key = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return key.strip()
        named = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
        return named or parse_qs(self.query).get("key", [""])[0]

    async def body(self, limit: int, timeout_s: float) -> bytes:
        """The whole request body.

        Raises:
            GatewayRequestError: over ``limit`` bytes, not there after ``timeout_s``, or the client left before the end.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._read(limit)
        except TimeoutError as error:
            raise GatewayRequestError(
                f"the request body did not arrive within {timeout_s:g} s", status=408, code="request_timeout"
            ) from error

    async def _read(self, limit: int) -> bytes:
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
        """Send a whole response. Returns whether the client was there to take it.

        That it was there means that all but the last 64 KiB have left for the kernel's buffers, of some megabytes;
        whether it reads them, only :attr:`resets` may tell.
        """
        if self._started:
            return False
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if status >= 400:
            head += _advice(status)
        await _look_around()
        await self._head(status, head)
        if len(body) > BUFFERED_BYTES:
            # The end is held back until nearly all has left: only that says that the client reads.
            await self.write(body[:-1])
            return await self.finish(body[-1:])
        return await self._end(body)

    async def start_stream(self) -> None:
        """Send the head of an event stream."""
        await self._head(200, [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")])

    async def write(self, chunk: bytes) -> None:
        """Send a part of a stream."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self, chunk: bytes) -> bool:
        """Send the last part. Returns whether the client was there to take it, as :meth:`send_json` does."""
        await _look_around()
        return await self._end(chunk)

    async def _end(self, chunk: bytes) -> bool:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": False})
        return not self.left

    async def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


async def _look_around() -> None:
    """Notice a client that has left: one turn of the loop reads the end of file, the other wakes who waits for it."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def _advice(status: int) -> list[tuple[bytes, bytes]]:
    """Headers of a refusal: whether the same request is worth another try."""
    advice = [(b"retry-after", b"1")] if status in PASSING else [(b"x-should-retry", b"false")]
    return [*advice, (b"connection", b"close")] if status in UNREAD else advice


def _headers(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)}
