"""uvicorn's HTTP protocol on a loopback port, in the caller's event loop, without its signal handlers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn

HOST = "127.0.0.1"
BACKLOG = 2048
POOL_S = 3600
"""Agents pool connections: closing an idle one races with their next request."""
DRAIN_S = 0.3


class LoopbackServer:
    """Serves one ASGI application on 127.0.0.1, on a port of the kernel's choice."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app,
            http="auto",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=POOL_S,
            backlog=BACKLOG,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._port = 0

    @property
    def port(self) -> int:
        """The port, once started."""
        return self._port

    async def start(self) -> None:
        """Listen."""
        self._socket.bind((HOST, 0))
        self._port = self._socket.getsockname()[1]
        # startup() rather than serve(): that one takes over the process's signals.
        await self._server.startup(sockets=[self._socket])

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


async def _settle(tasks: set[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(set(tasks), timeout=DRAIN_S)
