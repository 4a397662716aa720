"""What a gateway's process grows by over 100,000 requests at random; run by itself, as one serving nothing else.

In a process that has run hundreds of other tests, what the allocator gives and keeps is theirs as much as ours.
Pieces of prompts and requests are kept on purpose, up to bounds of their own: they are let go between rounds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import Counter
from random import Random

import psutil

from longrein.gateway.dialects.chat import ChatDialect
from longrein.gateway.routes import CHAT
from tests.gateway.rig import renderer
from tests.gateway.test_fuzz import fuzz

WARM_ROUNDS = 2
ROUNDS = 10
REQUESTS_A_ROUND = 10_000


def rss_mb() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


async def one_round(seed: int) -> Counter[int]:
    renderer.cache_clear()
    assert isinstance(CHAT, ChatDialect)
    CHAT.clear()
    return await fuzz(Random(seed), REQUESTS_A_ROUND)


async def main() -> None:
    for seed in range(WARM_ROUNDS):
        await one_round(seed)
    before = rss_mb()
    statuses: Counter[int] = Counter()
    for seed in range(WARM_ROUNDS, WARM_ROUNDS + ROUNDS):
        statuses += await one_round(seed)
    sys.stdout.write(json.dumps({"grown_mb": rss_mb() - before, "statuses": statuses}) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
