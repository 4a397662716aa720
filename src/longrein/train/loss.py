"""What one trained token costs: clipped GRPO against the sampler, and cross-entropy.

Both are pure functions of per-token tensors. How much a token weighs in its step (its *share*: row weight over the
step's one denominator) is decided in :mod:`longrein.train.batch`, so the sum of ``losses * shares`` over all
micro-batches is the loss of the step.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this on both sides: ``exp`` stays finite, and no gradient flows beyond."""


class TokenLosses(msgspec.Struct, frozen=True, kw_only=True):
    """Per-token results, each of shape ``[n]``."""

    losses: Tensor
    """Differentiable."""
    log_ratios: Tensor
    """Trainer logprob minus sampler logprob, detached."""
    clipped: Tensor
    """Bool: the clip binds, so this token gives no gradient."""


def clipped_grpo_loss(
    *, logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, epsilon: float, epsilon_high: float
) -> TokenLosses:
    """``-min(ratio * A, clip(ratio, 1 - epsilon, 1 + epsilon_high) * A)`` with ``ratio`` against the sampler.

    The sampler's logprobs stand in for the old policy, so one term corrects staleness and any difference between
    engine and trainer (PPO, arXiv 1707.06347; unequal bounds: DAPO, arXiv 2503.14476).

    Args:
        logprobs: ``[n]``, of the sampled tokens under the weights in training, at the sampling temperature.
        sampler_logprobs: ``[n]``, as the engine reported them.
        advantages: ``[n]``.
        epsilon: how far the ratio may fall below 1.
        epsilon_high: how far the ratio may rise above 1.
    """
    log_ratios = (logprobs - sampler_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratios = log_ratios.exp()
    bounded = ratios.clamp(1.0 - epsilon, 1.0 + epsilon_high)
    free, held = ratios * advantages, bounded * advantages
    return TokenLosses(
        losses=-torch.minimum(free, held),
        log_ratios=(logprobs - sampler_logprobs).detach(),
        clipped=(held < free).detach(),
    )


def cross_entropy_loss(*, logprobs: Tensor, sampler_logprobs: Tensor) -> TokenLosses:
    """``-logprob``: supervised training on the tokens that somebody else sampled.

    Args:
        logprobs: ``[n]``, under the weights in training.
        sampler_logprobs: ``[n]``; only measured against.
    """
    return TokenLosses(
        losses=-logprobs,
        log_ratios=(logprobs - sampler_logprobs).detach(),
        clipped=torch.zeros_like(logprobs, dtype=torch.bool),
    )
