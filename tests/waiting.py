"""Waiting for what must come, however slow the machine is: the limit is there against hanging alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 120.0


async def until(met: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Let others go on until it is so."""
    async with asyncio.timeout(limit_s):
        while True:
            if met():
                return
            await asyncio.sleep(0.005)


def wait_until(met: Callable[[], object]) -> None:
    """The same without an event loop."""
    give_up_s = time.monotonic() + LIMIT_S
    while not met():
        assert time.monotonic() < give_up_s, "it never came to that"
        time.sleep(0.01)
