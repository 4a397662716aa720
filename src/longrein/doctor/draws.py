"""Many single tokens of one context: what an engine samples there, and what it says of it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import numpy as np

from longrein.engines.base import Engine, EngineRequest, EngineSpec
from longrein.engines.render import ChatRenderer
from longrein.errors import EngineError, EngineRequestError
from longrein.rollout.together import together
from longrein.types import F32, I32, Completion, Sampling

FLAT = 100.0
"""A temperature at which every token is about as likely as any other."""
TEMPERATURES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)
HOTTER = (2.0, 4.0, 8.0)
LOOK = 64
"""Draws that tell how wide a distribution is."""
FEW = 24
"""So many different tokens among them at most: then each comes often enough to be counted."""
LEAST = 4
"""And so many at least: of one or two tokens nothing can be compared."""


class Draws(msgspec.Struct, frozen=True, kw_only=True):
    """The next token of one context, drawn ``n`` times. Arrays have shape ``[n]``."""

    temperature: float
    token_ids: I32
    logprobs: F32

    @property
    def size(self) -> int:
        """How many."""
        return int(self.token_ids.size)

    def counts(self) -> dict[int, int]:
        """Token -> how often it came."""
        ids, counts = np.unique(self.token_ids, return_counts=True)
        return dict(zip(ids.tolist(), counts.tolist(), strict=True))

    def reported(self) -> dict[int, float]:
        """Token -> the mean of the logprobs reported for it."""
        ids, places, counts = np.unique(self.token_ids, return_inverse=True, return_counts=True)
        sums = np.bincount(places, weights=self.logprobs.astype(np.float64))
        return dict(zip(ids.tolist(), (sums / counts).tolist(), strict=True))

    def noise(self) -> float:
        """The largest difference between a token's reported logprobs and their mean: 0 for an engine that repeats."""
        means = self.reported()
        return max(abs(float(lp) - means[int(t)]) for t, lp in zip(self.token_ids, self.logprobs, strict=True))


class Sampler:
    """Asks an engine on behalf of a check. Each request is a conversation of its own, forgotten at once.

    Args:
        engine: asked.
        label: begins the names of its conversations.
        parallel: requests at once.
    """

    def __init__(self, engine: Engine, label: str, parallel: int = 32) -> None:
        self.engine = engine
        self._names = (f"doctor-{label}-{number}" for number in itertools.count())
        self._parallel = parallel

    async def complete(self, prompt_ids: I32, sampling: Sampling) -> Completion:
        """One completion. Raises what :meth:`~longrein.engines.base.Engine.generate` does."""
        name = next(self._names)
        request = EngineRequest(request_id=name, conversation_id=name, prompt_ids=prompt_ids, sampling=sampling)
        try:
            completion = await self.engine.generate(request)
        finally:
            await self.engine.forget(name)
        if completion.token_ids.size == 0 or completion.token_ids.shape != completion.logprobs.shape:
            raise EngineError(
                f"the engine gave {completion.token_ids.size} tokens with {completion.logprobs.size} logprobs; a "
                "completion has at least one token, its stop token included, and one logprob for each"
            )
        return completion

    async def draws(self, prompt_ids: I32, count: int, temperature: float, first_seed: int = 0) -> Draws:
        """``count`` next tokens with the seeds ``first_seed``, ``first_seed + 1``, ..."""
        samplings = [
            Sampling(max_tokens=1, temperature=temperature, seed=first_seed + number) for number in range(count)
        ]
        completions: list[Completion] = []
        for start in range(0, count, self._parallel):
            batch = samplings[start : start + self._parallel]
            completions += await together(self.complete(prompt_ids, sampling) for sampling in batch)
        return Draws(
            temperature=temperature,
            token_ids=np.array([one.token_ids[0] for one in completions], dtype=np.int32),
            logprobs=np.array([one.logprobs[0] for one in completions], dtype=np.float32),
        )

    async def telling_temperature(self, prompt_ids: I32) -> float:
        """One at which the next token is one of a few, so that frequencies can be counted; the nearest to 1."""
        for temperature in TEMPERATURES:
            width = await self._width(prompt_ids, temperature)
            if width <= FEW:
                return temperature if width >= LEAST or temperature < 1.0 else await self._hotter(prompt_ids)
        return TEMPERATURES[-1]

    async def hottest(self, prompt_ids: I32) -> float:
        """The hottest temperature that the engine takes, of two: vLLM refuses more than 2."""
        try:
            await self.complete(prompt_ids, Sampling(max_tokens=1, temperature=FLAT, seed=0))
        except EngineRequestError:
            return HOTTER[0]
        return FLAT

    async def _hotter(self, prompt_ids: I32) -> float:
        hottest = await self.hottest(prompt_ids)
        taken = [temperature for temperature in HOTTER if temperature <= hottest]
        for temperature in taken:
            if await self._width(prompt_ids, temperature) >= LEAST:
                return temperature
        return taken[-1]

    async def _width(self, prompt_ids: I32, temperature: float) -> int:
        return len((await self.draws(prompt_ids, LOOK, temperature)).counts())


@asynccontextmanager
async def sampler_of(spec: EngineSpec, label: str) -> AsyncGenerator[Sampler, None]:
    """Connect, and close the connection at the end. Raises :class:`~longrein.errors.EngineError`."""
    engine = await spec.connect()
    try:
        yield Sampler(engine, label)
    finally:
        await engine.close()


def probe_prompt(renderer: ChatRenderer) -> I32:
    """Ids of a short conversation as the run's agents will send them, shape ``[n]``."""
    question = "Name a few animals that pull a cart, in any order, and say which of them you would rather drive."
    return renderer.render(({"role": "user", "content": question},), ())
