"""Correction of the gap between the policy that sampled and the policy before this step.

With recomputed old logprobs, ``ratio = current / old`` no longer sees who sampled; ``w = old / sampler`` does, and
multiplies each token's loss without a gradient of its own (decoupled PPO, arXiv 2110.00641; AReaL, arXiv 2505.24298).
``w`` carries staleness and every difference between engine and trainer.

Truncated (TIS): ``min(w, cap)``, Yao et al. 2025, https://fengyao.notion.site/off-policy-rl. Masked: ``w`` inside
``[floor, cap]``, else 0; at the token level with both bounds it is IcePop (Ring-1T, arXiv 2510.18855), at the sequence
level with ``floor = 0`` it is MIS (Liu et al. 2025, https://yingru.notion.site, "When Speed Kills Stability"). The
sequence is the whole rollout, and its ``w`` the product over all its trained tokens.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import torch
from torch import Tensor

from longrein.train.losses.terms import MAX_LOG_RATIO


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Importance weights of ``n`` tokens, each of shape ``[n]``, none with a gradient."""

    applied: Tensor
    """Multiplies the token's loss."""
    measured: Tensor
    """What the effective sample size is computed of: the applied weights, or the raw ones where none are applied."""
    truncated: Tensor
    """Bool: the cap binds."""
    masked: Tensor
    """Bool: left out."""


class Correction(Protocol):
    """Log-ratios of trainer to sampler -> weights."""

    @property
    def needs_sequences(self) -> bool:
        """Whether :meth:`weights` reads ``sequence_log_ratios``."""
        ...

    def weights(self, log_ratios: Tensor, sequence_log_ratios: Tensor) -> Weights:
        """Weigh ``n`` tokens.

        Args:
            log_ratios: ``[n]``: old minus sampler logprob of the token.
            sequence_log_ratios: ``[n]``: their sum over all trained tokens of the token's rollout.
        """
        ...


class Bound(Protocol):
    """What becomes of importance weights that are too large or too small."""

    def weights(self, log_ratios: Tensor) -> Weights:
        """``[n]`` log-ratios -> weights."""
        ...


class Truncate(msgspec.Struct, frozen=True, kw_only=True):
    """``min(w, cap)``."""

    cap: float

    def weights(self, log_ratios: Tensor) -> Weights:
        """See :class:`Bound`."""
        raw = _exp(log_ratios)
        applied = raw.clamp(max=self.cap)
        return Weights(
            applied=applied, measured=applied, truncated=raw > self.cap, masked=torch.zeros_like(raw, dtype=torch.bool)
        )


class Mask(msgspec.Struct, frozen=True, kw_only=True):
    """``w`` if ``floor <= w <= cap``, else 0."""

    floor: float
    cap: float

    def weights(self, log_ratios: Tensor) -> Weights:
        """See :class:`Bound`."""
        raw = _exp(log_ratios)
        masked = (raw < self.floor) | (raw > self.cap)
        applied = raw.masked_fill(masked, 0.0)
        return Weights(applied=applied, measured=applied, truncated=torch.zeros_like(masked), masked=masked)


class Uncorrected(msgspec.Struct, frozen=True, kw_only=True):
    """Weight 1 for every token; the raw weights are still measured."""

    needs_sequences: bool = False

    def weights(self, log_ratios: Tensor, sequence_log_ratios: Tensor) -> Weights:
        """See :class:`Correction`."""
        nowhere = torch.zeros_like(log_ratios, dtype=torch.bool)
        return Weights(
            applied=torch.ones_like(log_ratios), measured=_exp(log_ratios), truncated=nowhere, masked=nowhere
        )


class TokenLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Each token by its own ratio: little variance, biased for autoregressive models."""

    bound: Bound
    needs_sequences: bool = False

    def weights(self, log_ratios: Tensor, sequence_log_ratios: Tensor) -> Weights:
        """See :class:`Correction`."""
        return self.bound.weights(log_ratios)


class SequenceLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Each token by the ratio of its whole rollout: unbiased before the bound, of much variance for long rollouts."""

    bound: Bound
    needs_sequences: bool = True

    def weights(self, log_ratios: Tensor, sequence_log_ratios: Tensor) -> Weights:
        """See :class:`Correction`."""
        return self.bound.weights(sequence_log_ratios)


def _exp(log_ratios: Tensor) -> Tensor:
    return log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
