"""Process: the floor. Hands every request on and every answer back, unread."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import channel

sys.path.insert(0, str(Path(__file__).parents[2]))

from gateway_bench.loopback import listening
from gateway_bench.upstream import Receive, Scope, Send, read_body, respond


class PassThrough:
    """uvicorn in front, aiohttp's client behind."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        headers = {"content-type": "application/json"}
        async with self._session.post(self._upstream + scope["path"], data=body, headers=headers) as response:
            answer = await response.read()
        await respond(send, answer, response.headers["content-type"].encode())

    async def close(self) -> None:
        await self._session.close()


async def main() -> None:
    through = PassThrough(sys.argv[1])
    async with listening(through) as url:

        async def handle(order: dict[str, Any]) -> dict[str, Any]:
            if order["do"] == "open":
                return {"endpoints": [{"url": f"{url}/v1/chat/completions"}] * order["count"]}
            return {}

        await channel.serve(url, handle)
    await through.close()


asyncio.run(main())
