"""The one signature of all policy losses: what a loss sees of each trained token, and what it says about it.

A loss knows nothing of rows, micro-batches or denominators. How much a token weighs in its step (its *share*: row
weight over the step's one denominator) is decided in :mod:`longrein.train.batch`, so the sum of ``losses * shares``
over all micro-batches is the loss of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this on both sides: ``exp`` stays finite, and no gradient flows beyond."""


class PolicyTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy loss sees of ``n`` trained tokens, each tensor of shape ``[n]`` and one real dtype."""

    logprobs: Tensor
    """Under the weights in training, at the sampling temperature. Differentiable; nothing else here is."""
    old_logprobs: Tensor
    """Under the policy that the ratio compares to: the sampler, or the trainer before this step."""
    advantages: Tensor
    sequence_log_ratios: Tensor
    """Mean of ``logprobs - old_logprobs`` over all trained tokens of the token's *rollout*, wherever its rows went.

    Only losses that are marked as sequence-level may read it; for others it is zero.
    """


class ClipBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How far a ratio may go."""

    epsilon: float
    """Down to ``1 - epsilon``."""
    epsilon_high: float
    """Up to ``1 + epsilon_high``."""
    delta: float = math.inf
    """Bound of the ratio where the advantage is negative, which the clip leaves open above."""


class TokenLosses(msgspec.Struct, frozen=True, kw_only=True):
    """What a loss says about ``n`` tokens, each of shape ``[n]``."""

    losses: Tensor
    """Differentiable."""
    clipped_low: Tensor
    """Bool: the lower bound binds."""
    clipped_high: Tensor
    """Bool: an upper bound binds."""


PolicyLossFunction = Callable[[PolicyTokens, ClipBounds], TokenLosses]


def ratios(tokens: PolicyTokens) -> Tensor:
    """``exp(logprobs - old_logprobs)``, shape ``[n]``, differentiable, finite whatever the engine said."""
    return (tokens.logprobs - tokens.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
