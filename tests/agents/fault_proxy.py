"""A reverse proxy between an agent and the gateway: forwards everything as it comes, and injects faults by plan."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp import web

HOST = "127.0.0.1"
_HOP_BY_HOP = {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Upstream(Protocol):
    """What a fault may still ask of the gateway."""

    async def forward(
        self, request: web.Request, body: bytes, cut_after_bytes: int | None = None
    ) -> web.StreamResponse:
        """Forward a request and its answer, up to ``cut_after_bytes`` of the answer's body; then abort both sides."""
        ...


class HttpFault(Protocol):
    """Something that goes wrong with one request."""

    async def serve(self, request: web.Request, body: bytes, upstream: Upstream) -> web.StreamResponse:
        """Answer in place of the gateway, or let it answer in part."""
        ...


class Http500(msgspec.Struct, frozen=True, kw_only=True):
    """An internal server error; the gateway never sees the request."""

    async def serve(self, request: web.Request, body: bytes, upstream: Upstream) -> web.StreamResponse:
        return web.json_response(_error_body("api_error", "injected"), status=500)


class Http429(msgspec.Struct, frozen=True, kw_only=True):
    """Too many requests, come back in ``retry_after_s``."""

    retry_after_s: int = 2

    async def serve(self, request: web.Request, body: bytes, upstream: Upstream) -> web.StreamResponse:
        headers = {"retry-after": str(self.retry_after_s)}
        return web.json_response(_error_body("rate_limit_error", "slow down"), status=429, headers=headers)


class CutStream(msgspec.Struct, frozen=True, kw_only=True):
    """The answer's head and its first ``after_bytes`` arrive, then both connections are aborted."""

    after_bytes: int = 200

    async def serve(self, request: web.Request, body: bytes, upstream: Upstream) -> web.StreamResponse:
        return await upstream.forward(request, body, cut_after_bytes=self.after_bytes)


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """Not a byte for ``seconds``, then the gateway's answer."""

    seconds: float

    async def serve(self, request: web.Request, body: bytes, upstream: Upstream) -> web.StreamResponse:
        await asyncio.sleep(self.seconds)
        return await upstream.forward(request, body)


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """No fault: tells that the request has come."""

    come: asyncio.Event

    async def serve(self, request: web.Request, body: bytes, upstream: Upstream) -> web.StreamResponse:
        self.come.set()
        return await upstream.forward(request, body)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A fault for the ``first`` to the ``last`` POST, counted from 1."""

    fault: HttpFault
    first: int
    last: int


def once(fault: HttpFault, post: int = 1) -> Planned:
    """The fault for one POST."""
    return Planned(fault=fault, first=post, last=post)


def always(fault: HttpFault, first: int = 1) -> Planned:
    """The fault for every POST from ``first`` on."""
    return Planned(fault=fault, first=first, last=1 << 30)


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """A POST that the agent sent."""

    path: str
    """Without the secret."""
    headers: dict[str, str]
    """Names in lower case."""
    body: Any
    """The parsed JSON; ``None`` where it is none."""
    at_s: float
    """Monotonic clock."""
    fault: HttpFault | None


class FaultProxy:
    """Listens on its own loopback port."""

    def __init__(self, upstream_port: int, plan: Sequence[Planned] = ()) -> None:
        self.posts: list[Post] = []
        """Every POST, in order of arrival."""
        self.silent = asyncio.Event()
        """Set once a :class:`Silence` has begun."""
        self.port = 0
        self._upstream = f"http://{HOST}:{upstream_port}"
        self._plan = tuple(plan)
        self._client: aiohttp.ClientSession

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[FaultProxy]:
        """Serve until the block ends."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._serve)
        # A handler is cancelled when its agent leaves, so that the gateway sees the agent leave.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, HOST, 0)
        connections = aiohttp.TCPConnector(limit=0, force_close=True)
        self._client = aiohttp.ClientSession(
            connector=connections, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        try:
            await site.start()
            self.port = runner.addresses[0][1]
            yield self
        finally:
            await self._client.close()
            await runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fault = self._note(request, body) if request.method == "POST" else None
        if isinstance(fault, Silence):
            self.silent.set()
        if fault is not None:
            return await fault.serve(request, body, self)
        return await self.forward(request, body)

    def _note(self, request: web.Request, body: bytes) -> HttpFault | None:
        number = len(self.posts) + 1
        fault = next((one.fault for one in self._plan if one.first <= number <= one.last), None)
        self.posts.append(
            Post(
                path="/" + request.path_qs.lstrip("/").partition("/")[2],
                headers={name.lower(): value for name, value in request.headers.items()},
                body=_parsed(body),
                at_s=time.monotonic(),
                fault=fault,
            )
        )
        return fault

    async def forward(
        self, request: web.Request, body: bytes, cut_after_bytes: int | None = None
    ) -> web.StreamResponse:
        """See :class:`Upstream`."""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = self._upstream + request.path_qs
        async with self._client.request(request.method, url, headers=headers, data=body) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            room = cut_after_bytes
            async for chunk in answer.content.iter_any():
                await response.write(chunk if room is None else chunk[:room])
                if room is not None:
                    room -= len(chunk)
                    if room <= 0:
                        await _abort(request)
                        return response
            await response.write_eof()
            return response


async def _abort(request: web.Request) -> None:
    await asyncio.sleep(0.05)  # what was written leaves first
    if request.transport is not None:
        request.transport.abort()


def _error_body(kind: str, message: str) -> dict[str, Any]:
    """Reads as an error in every dialect."""
    return {"type": "error", "error": {"type": kind, "code": kind, "message": message}}


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
