"""Check: a conversation's second turn does not compute its first one again."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from longrein.doctor.check import About
from longrein.doctor.result import Verdict, cannot_tell, failed, passed
from longrein.engines.base import Engine, EngineRequest, EngineSpec
from longrein.engines.render import ChatRenderer
from longrein.types import I32, Sampling

ROUNDS = 3
MOST_TOKENS = 4096
NEW_TOKENS = 8
MUCH_FASTER = 0.5
NO_FASTER = 0.8
LEAST_S = 0.1
"""A first turn quicker than this is over before its time says anything."""
FIX = "switch the prefix cache on (vLLM: --enable-prefix-caching; embedded engine: cache_tokens above the context)"


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Two turns of one conversation."""

    first_s: float
    second_s: float
    second_computed: int
    prompt_tokens: int
    """Of the second turn."""


class PrefixCache:
    """Takes conversations to their second turn and looks at the engine's counter, else at the time."""

    about = About(name="prefix_cache", certifies="a turn costs only its new tokens")

    def __init__(self, spec: EngineSpec, renderer: ChatRenderer, context_length: int) -> None:
        self._spec = spec
        self._renderer = renderer
        self._tokens = min(MOST_TOKENS, context_length // 2)

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        engine = await self._spec.connect()
        try:
            return judged([await self._two_turns(engine, number) for number in range(ROUNDS)])
        finally:
            await engine.close()

    async def _two_turns(self, engine: Engine, number: int) -> Turns:
        """Each conversation begins with a word of its own, so that nothing of it is cached before."""
        words = self._renderer.encode(f"{number} {time.time_ns()}. " + "The road goes over hills and along rivers. ")
        prompt_ids = np.resize(words, self._tokens).astype(np.int32)
        name = f"doctor-prefix_cache-{number}"

        def turn(ids: I32) -> EngineRequest:
            return EngineRequest(
                request_id=f"{name}-{ids.size}",
                conversation_id=name,
                prompt_ids=ids,
                sampling=Sampling(max_tokens=2, seed=number),
            )

        try:
            started_s = time.perf_counter()
            first = await engine.generate(turn(prompt_ids))
            first_s = time.perf_counter() - started_s
            longer = np.concatenate([prompt_ids, first.token_ids, words[:NEW_TOKENS]])
            started_s = time.perf_counter()
            second = await engine.generate(turn(longer))
            second_s = time.perf_counter() - started_s
        finally:
            await engine.forget(name)
        return Turns(
            first_s=first_s,
            second_s=second_s,
            second_computed=second.prefill_tokens,
            prompt_tokens=int(longer.size),
        )


def judged(rounds: list[Turns]) -> Verdict:
    """The engine's own counter where it counts less than all, else the time: "all" may mean that it does not know."""
    one = rounds[-1]
    if 0 < one.second_computed < one.prompt_tokens // 2:
        return passed(f"a second turn of {one.prompt_tokens} tokens computed {one.second_computed} of them")
    first_s, second_s = min(turn.first_s for turn in rounds), min(turn.second_s for turn in rounds)
    told = f"a first turn took {first_s:.3f} s, a second one of {one.prompt_tokens} tokens {second_s:.3f} s"
    if first_s < LEAST_S:
        return cannot_tell(f"{told}: too quick to tell, and the engine does not count what comes from its cache", FIX)
    if second_s < MUCH_FASTER * first_s:
        return passed(told)
    if second_s > NO_FASTER * first_s:
        return failed(told, FIX)
    return cannot_tell(told, FIX)
