"""Process: the canned engine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import channel

sys.path.insert(0, str(Path(__file__).parents[2]))

from gateway_bench.loopback import listening
from gateway_bench.upstream import Upstream


async def handle(order: dict[str, Any]) -> dict[str, Any]:
    return {}


async def main() -> None:
    async with listening(Upstream()) as url:
        await channel.serve(url, handle)


asyncio.run(main())
