"""Work on large requests, in threads: meanwhile the event loop goes on with everybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LARGE_BYTES = 128 * 1024
"""From this size on a thread is worth its while: what is smaller takes less than some 10 ms."""
THREADS = 2
"""However many large requests come at once: threads of Python take turns, and the loop's is one of them."""

_POOL = ThreadPoolExecutor(THREADS, thread_name_prefix="longrein-large-requests")


async def aside(size_bytes: int, work: Callable[[], T]) -> T:
    """What ``work`` returns or raises; at once where ``size_bytes`` is small, else from a thread.

    Work in a thread may touch nothing that the loop changes. It goes on if whoever waits is cancelled.
    """
    if size_bytes < LARGE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_POOL, work)
