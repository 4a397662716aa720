"""uvicorn on a loopback port of the kernel's choice, for the canned engine and the floor."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """Serve ``app``; yields its URL."""
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", log_level="error", access_log=False, timeout_keep_alive=3600
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    await server.startup(sockets=[listener])
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    for bound in server.servers:
        bound.close()
    listener.close()
