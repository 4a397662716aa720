"""uvicorn's HTTP protocol on a loopback port, in the caller's event loop, without its signal handlers."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

import msgspec
import uvicorn

from longrein.gateway.connection import BoundedConnection
from longrein.gateway.settings import HttpBounds

HOST = "127.0.0.1"
BACKLOG = 2048
ACCEPTED_AT_ONCE = 32
"""asyncio accepts so many before any of them can be closed."""
POOL_S = 3600
"""Agents pool connections: closing an idle one races with their next request."""
DRAIN_S = 0.3


class LoopbackServer:
    """Serves one ASGI application, by default on 127.0.0.1 and on a port of the kernel's choice."""

    def __init__(self, app: Any, bounds: HttpBounds, host: str = HOST, port: int = 0) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedConnection.within(_affordable(bounds)),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=POOL_S,
            backlog=ACCEPTED_AT_ONCE,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        # The protocol is named because asyncio sets TCP_NODELAY only then: without it an answer waits 40 ms.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._address = (host, port)
        self._port = 0

    @property
    def port(self) -> int:
        """The port, once started."""
        return self._port

    async def start(self) -> None:
        """Listen. Raises ``OSError`` where the address is not to be had."""
        if self._address[1]:
            # A port of somebody's choice is wanted again at once after a restart.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(self._address)
        self._port = self._socket.getsockname()[1]
        # startup() rather than serve(): that one takes over the process's signals.
        await self._server.startup(sockets=[self._socket])
        self._socket.listen(BACKLOG)

    async def close(self) -> None:
        """Stop listening, let answers under way end for a moment, then cut every connection."""
        for listener in self._server.servers:
            listener.close()
        state = self._server.server_state
        for connection in list(state.connections):
            connection.shutdown()
        await _settle(state.tasks)
        for connection in list(state.connections):
            connection.transport.abort()
        await _settle(state.tasks)
        self._socket.close()


def _affordable(bounds: HttpBounds) -> HttpBounds:
    """At most half of the process's file descriptors are for connections: out of them, asyncio logs without end."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return bounds
    return msgspec.structs.replace(bounds, max_connections=min(bounds.max_connections, descriptors // 2))


async def _settle(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(set(tasks), timeout=DRAIN_S)
