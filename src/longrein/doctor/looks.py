"""What an engine says of one context at one moment, to be compared with what it says later."""

from __future__ import annotations

import math

import msgspec

from longrein.doctor.draws import Sampler
from longrein.types import I32, Sampling

DRAWS = 48
EXACT = 1e-3
"""Nats by which logprobs may differ where the weights are the same."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The next token of one context."""

    logprobs: dict[int, float]
    """Token -> its logprob, of those that came."""
    min_policy_version: int
    max_policy_version: int

    def differs(self, other: Look) -> float:
        """The largest difference over tokens that came both times, in nats; infinite where none did."""
        both = self.logprobs.keys() & other.logprobs.keys()
        return max((abs(self.logprobs[token] - other.logprobs[token]) for token in both), default=math.inf)

    def is_of(self, policy_version: int) -> bool:
        """Whether it was sampled by the weights of this version and no other, as the engine says."""
        return (self.min_policy_version, self.max_policy_version) == (policy_version, policy_version)


async def look(sampler: Sampler, prompt_ids: I32) -> Look:
    """Raises what :meth:`~longrein.engines.base.Engine.generate` does."""
    draws = await sampler.draws(prompt_ids, DRAWS, 1.0)
    told = await sampler.complete(prompt_ids, Sampling(max_tokens=2, seed=0))
    return Look(
        logprobs=draws.reported(),
        min_policy_version=told.min_policy_version,
        max_policy_version=told.max_policy_version,
    )
