"""Time that passes when a test says so: a timeout then comes after what has to come before it, on any machine."""

from __future__ import annotations

import asyncio


def skip(seconds: float) -> None:
    """From now on the running event loop believes that ``seconds`` more have passed. Threads' own waits do not."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
