"""How a host process takes orders: one line of JSON in, one line out. Standard library only, for every environment."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Handle = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def say(answer: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def serve(url: str, handle: Handle) -> None:
    """Say where the server listens, then take orders until stdin ends."""
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    say({"url": url})
    while line := await reader.readline():
        say(await handle(json.loads(line)))
