"""Check: the context that the run counts on is really served, whole."""

from __future__ import annotations

import numpy as np

from longrein.doctor.check import About
from longrein.doctor.draws import Sampler, sampler_of
from longrein.doctor.result import Verdict, cannot_tell, combined, failed, passed
from longrein.engines.base import EngineSpec
from longrein.engines.render import ChatRenderer
from longrein.errors import ContextLengthError, EngineRequestError
from longrein.types import I32, Sampling

CHANGED = 16
"""Tokens at the beginning that are replaced, to see whether they were read."""
DRAWS = 24


class ContextLength:
    """Sends a prompt that fills the context, one that does not fit, and one whose beginning differs."""

    about = About(name="context", certifies="prompts up to model.context_length are served whole, longer ones refused")

    def __init__(self, spec: EngineSpec, renderer: ChatRenderer, context_length: int) -> None:
        self._spec = spec
        self._renderer = renderer
        self._context_length = context_length

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        async with sampler_of(self._spec, self.about.name) as sampler:
            served = (await sampler.engine.info()).context_length
            if served < self._context_length:
                return failed(
                    f"the engine serves {served} tokens, the run asks for {self._context_length}",
                    f"start the engine with more, or set model.context_length = {served}",
                )
            full = self._text(self._context_length - 1)
            try:
                await sampler.complete(full, Sampling(max_tokens=1, seed=0))
            except (ContextLengthError, EngineRequestError) as error:
                return failed(
                    f"a prompt of {full.size} tokens is refused: {error}", "start the engine with the run's context"
                )
            return combined([await _refuses_more(sampler, self._text(served + 1)), await _reads_all(sampler, full)])

    def _text(self, size: int) -> I32:
        words = self._renderer.encode("The horse walks on. The driver keeps the reins long and says nothing. ")
        return np.resize(words, size).astype(np.int32)


async def _refuses_more(sampler: Sampler, longer: I32) -> Verdict:
    try:
        await sampler.complete(longer, Sampling(max_tokens=1, seed=0))
    except ContextLengthError:
        return passed(f"{longer.size} tokens are refused")
    except EngineRequestError as error:
        return failed(
            f"a prompt beyond the context is refused as if it were malformed: {error}",
            "have the engine's client raise ContextLengthError, or such rollouts fail instead of being cut off",
        )
    return failed(
        f"a prompt of {longer.size} tokens, more than the engine says it can, was answered",
        "it was cut silently: switch off truncation of prompts in the engine",
    )


async def _reads_all(sampler: Sampler, full: I32) -> Verdict:
    """Another beginning gives other logprobs; were it cut off, they would be the same."""
    other = full.copy()
    other[:CHANGED] = other[:CHANGED][::-1]
    if np.array_equal(other, full):
        return cannot_tell("the context is too short to tell whether its beginning is read")
    one = (await sampler.draws(full, DRAWS, 1.0)).reported()
    again = (await sampler.draws(full, DRAWS, 1.0)).reported()
    changed = (await sampler.draws(other, DRAWS, 1.0)).reported()
    noise = max((abs(one[token] - again[token]) for token in one.keys() & again.keys()), default=0.0)
    common = one.keys() & changed.keys()
    if not common:
        return passed(f"{full.size} tokens are read from their beginning")
    effect = max(abs(one[token] - changed[token]) for token in common)
    if effect > 2.0 * noise:
        return passed(f"{full.size} tokens are read from their beginning")
    if noise == 0.0:
        return failed(
            f"the first {CHANGED} of {full.size} tokens change nothing",
            "switch off truncation of prompts in the engine, or serve a longer context",
        )
    return cannot_tell(f"the first tokens of {full.size} change less than equal requests differ ({noise:.1e} nats)")
