"""Soft overlong punishment: a reward function that likes rollouts to end before they must."""

from __future__ import annotations

import msgspec

from longrein.errors import ConfigError
from longrein.rollout.group import RolloutRewardFn, harness_reward
from longrein.views import Outcome


class OverlongPunishment(msgspec.Struct, frozen=True, kw_only=True):
    """A ``rollout_reward_fn``: another one's reward, less up to 1 for length (DAPO, arXiv 2503.14476, eq. 13).

    ``0`` up to ``max_tokens - cache_tokens`` sampled tokens, then linearly down to ``-1`` at ``max_tokens``, and ``-1``
    beyond. Tokens of every role of the rollout count. Unscorable stays unscorable.

    Raises:
        ConfigError: not ``0 < cache_tokens <= max_tokens``.
    """

    max_tokens: int
    cache_tokens: int
    reward_fn: RolloutRewardFn = harness_reward

    def __post_init__(self) -> None:
        if not 0 < self.cache_tokens <= self.max_tokens:
            raise ConfigError(
                f"OverlongPunishment: cache_tokens={self.cache_tokens} and max_tokens={self.max_tokens} cannot work; "
                "give 0 < cache_tokens <= max_tokens"
            )

    def __call__(self, outcome: Outcome) -> float | None:
        """Judge a rollout."""
        reward = self.reward_fn(outcome)
        if reward is None:
            return None
        over = outcome.trace.sampled_tokens - (self.max_tokens - self.cache_tokens)
        return reward - min(max(over / self.cache_tokens, 0.0), 1.0)
