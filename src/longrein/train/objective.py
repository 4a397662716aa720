"""What a step optimises: a loss, who its old policy is, a correction for the sampler, and a penalty."""

from __future__ import annotations

from typing import Protocol

import msgspec
import torch
from torch import Tensor

from longrein.train.batch import MicroBatch
from longrein.train.correction import Correction
from longrein.train.losses.terms import ClipBounds, PolicyLossFunction, PolicyTokens
from longrein.train.old_policy import OldPolicy
from longrein.train.reference import Penalty
from longrein.train.score import TokenScores
from longrein.types import Row


class TokenTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of ``n`` tokens, each of shape ``[n]``; only ``losses`` is differentiable."""

    losses: Tensor
    log_ratios: Tensor
    """Trainer logprob minus sampler logprob."""
    importance: Tensor
    """Weights of which the effective sample size is measured."""
    clipped_low: Tensor
    """Bool."""
    clipped_high: Tensor
    """Bool."""
    truncated: Tensor
    """Bool: the correction's cap binds."""
    masked: Tensor
    """Bool: the correction leaves the token out."""
    penalties: Tensor
    """Distance to the reference."""


class Objective(Protocol):
    """Turns scores into losses, and knows which rows have anything to teach."""

    @property
    def needs_sequences(self) -> bool:
        """Whether :meth:`terms` reads ``sequence_sums``."""
        ...

    def teaches(self, row: Row) -> bool:
        """False where the gradient is zero for certain, so that no forward pass is spent on it."""
        ...

    def terms(self, scores: TokenScores, batch: MicroBatch, sequence_sums: Tensor) -> TokenTerms:
        """Per-token losses of one micro-batch.

        Args:
            scores: of the weights in training.
            batch: the micro-batch.
            sequence_sums: ``[n]``: sum over the token's rollout of trainer minus sampler logprobs; anything where
                :attr:`needs_sequences` is false.
        """
        ...


class PolicyLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A loss bound to its parameters."""

    function: PolicyLossFunction
    bounds: ClipBounds
    reads_sequences: bool = False
    """It reads ``sequence_log_ratios``."""


class PolicyObjective(msgspec.Struct, frozen=True, kw_only=True):
    """``w * loss(logprobs, old, advantages) + beta * distance`` for each token, see ``docs/training.md``."""

    loss: PolicyLoss
    old_policy: OldPolicy
    correction: Correction
    penalty: Penalty

    @property
    def needs_sequences(self) -> bool:
        """See :class:`Objective`."""
        by_loss = self.loss.reads_sequences and self.old_policy.differs_from_current
        return by_loss or self.correction.needs_sequences

    def teaches(self, row: Row) -> bool:
        """A row whose advantage is zero, as in a group of equal rewards, teaches nothing unless a penalty does."""
        return row.weight != 0.0 and (row.advantage != 0.0 or self.penalty.weight != 0.0)

    def terms(self, scores: TokenScores, batch: MicroBatch, sequence_sums: Tensor) -> TokenTerms:
        """See :class:`Objective`."""
        log_ratios = (scores.logprobs - batch.sampler_logprobs).detach()
        weights = self.correction.weights(log_ratios, sequence_sums)
        tokens = PolicyTokens(
            logprobs=scores.logprobs,
            old_logprobs=self.old_policy.logprobs(scores.logprobs, batch),
            advantages=batch.advantages,
            sequence_log_ratios=self.old_policy.sequence_log_ratios(sequence_sums, batch),
        )
        lost = self.loss.function(tokens, self.loss.bounds)
        penalties = self.penalty.costs(scores, batch)
        return TokenTerms(
            losses=weights.applied * lost.losses + self.penalty.weight * penalties,
            log_ratios=log_ratios,
            importance=weights.measured,
            clipped_low=lost.clipped_low,
            clipped_high=lost.clipped_high,
            truncated=weights.truncated,
            masked=weights.masked,
            penalties=penalties.detach(),
        )


class CrossEntropy(msgspec.Struct, frozen=True, kw_only=True):
    """``-logprob``: supervised training on the tokens that somebody else sampled."""

    needs_sequences: bool = False

    def teaches(self, row: Row) -> bool:
        """Every row does, unless it weighs nothing."""
        return row.weight != 0.0

    def terms(self, scores: TokenScores, batch: MicroBatch, sequence_sums: Tensor) -> TokenTerms:
        """See :class:`Objective`."""
        nowhere = torch.zeros_like(scores.logprobs, dtype=torch.bool)
        return TokenTerms(
            losses=-scores.logprobs,
            log_ratios=(scores.logprobs - batch.sampler_logprobs).detach(),
            importance=torch.ones_like(scores.logprobs),
            clipped_low=nowhere,
            clipped_high=nowhere,
            truncated=nowhere,
            masked=nowhere,
            penalties=torch.zeros_like(scores.logprobs),
        )
