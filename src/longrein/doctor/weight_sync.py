"""Check: publishing weights changes what the engine samples, and nothing else does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

from longrein.doctor.check import About
from longrein.doctor.draws import Sampler, probe_prompt, sampler_of
from longrein.doctor.result import Verdict, cannot_tell, failed, passed
from longrein.engines.base import EngineSpec, WeightReceiver
from longrein.engines.render import ChatRenderer
from longrein.types import I32, Completion, Sampling

DRAWS = 48
SCALE = 1.25
"""What every tensor is multiplied by: the logits of any model with a final norm or head change by as much."""
EXACT = 1e-3
"""Nats by which logprobs may differ once the same weights are back."""

Weights = Callable[[], Mapping[str, Any]]
"""Loads the weights that the engine began with: name -> ``torch.Tensor``."""


class WeightSync:
    """Publishes other weights, then the first ones again, and compares logprobs and versions."""

    about = About(
        name="weight_sync",
        certifies="published weights, and nothing else, change the logprobs; versions are right",
    )

    def __init__(self, spec: EngineSpec, receiver: WeightReceiver, weights: Weights, renderer: ChatRenderer) -> None:
        self._spec = spec
        self._receiver = receiver
        self._weights = weights
        self._renderer = renderer

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`. The engine has its own weights again on return."""
        prompt_ids = probe_prompt(self._renderer)
        weights = await asyncio.to_thread(self._weights)
        async with sampler_of(self._spec, self.about.name) as sampler:
            version = (await _complete(sampler, prompt_ids)).max_policy_version
            before = await _logprobs(sampler, prompt_ids)
            noise = _difference(before, await _logprobs(sampler, prompt_ids))
            try:
                await asyncio.to_thread(self._receiver.update, _scaled(weights), version + 1)
                effect = _difference(before, await _logprobs(sampler, prompt_ids))
                told = await _complete(sampler, prompt_ids)
            finally:
                await asyncio.to_thread(self._receiver.update, weights, version + 2)
            rest = _difference(before, await _logprobs(sampler, prompt_ids))
        versions = (told.min_policy_version, told.max_policy_version)
        return _judged(noise, effect, rest) if versions == (version + 1,) * 2 else _wrong(versions, version + 1)


def _judged(noise: float, effect: float, rest: float) -> Verdict:
    if effect <= max(EXACT, 2.0 * noise):
        return failed(
            f"other weights were published and the logprobs stayed ({effect:.1e} nats)",
            "see whether the engine's weight transfer is switched on, and whether its cached prompts are dropped",
        )
    if rest > max(EXACT, 3.0 * noise):
        return failed(
            f"with the first weights published again, logprobs differ by {rest:.1e} nats from the first ones",
            "see whether the engine takes every tensor, and in the dtype it loaded them in",
        )
    if noise > effect / 5.0:
        return cannot_tell(f"equal requests differ by {noise:.1e} nats, other weights only by {effect:.1e}")
    return passed(f"changed by {effect:.2f} nats and back to within {rest:.1e}; equal requests differ by {noise:.1e}")


def _wrong(versions: tuple[int, int], expected: int) -> Verdict:
    return failed(
        f"completions sampled with version {expected} say {versions[0]} to {versions[1]}",
        "the staleness bound rests on these numbers: mend the engine's bookkeeping",
    )


async def _complete(sampler: Sampler, prompt_ids: I32) -> Completion:
    return await sampler.complete(prompt_ids, Sampling(max_tokens=2, seed=0))


async def _logprobs(sampler: Sampler, prompt_ids: I32) -> dict[int, float]:
    return (await sampler.draws(prompt_ids, DRAWS, 1.0)).reported()


def _difference(one: dict[int, float], other: dict[int, float]) -> float:
    """The largest over tokens that came both times; infinite where none did."""
    return max((abs(one[token] - other[token]) for token in one.keys() & other.keys()), default=math.inf)


def _scaled(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor * SCALE if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
