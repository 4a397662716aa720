"""What a step optimises: a choice of loss, bound to its parameters."""

from __future__ import annotations

from typing import Protocol

import msgspec

from longrein.train.batch import MicroBatch
from longrein.train.loss import TokenLosses, clipped_grpo_loss, cross_entropy_loss
from longrein.train.score import TokenScores
from longrein.types import Row


class Objective(Protocol):
    """Turns scores into losses, and knows which rows have anything to teach."""

    def teaches(self, row: Row) -> bool:
        """False where the gradient is zero for certain, so that no forward pass is spent on it."""
        ...

    def losses(self, scores: TokenScores, batch: MicroBatch) -> TokenLosses:
        """Per-token losses of one micro-batch."""
        ...


class ClippedGrpo(msgspec.Struct, frozen=True, kw_only=True):
    """See :func:`~longrein.train.loss.clipped_grpo_loss`."""

    epsilon: float
    epsilon_high: float

    def teaches(self, row: Row) -> bool:
        """A row whose advantage is zero, as in a group of equal rewards, teaches nothing."""
        return row.advantage * row.weight != 0.0

    def losses(self, scores: TokenScores, batch: MicroBatch) -> TokenLosses:
        """See :class:`Objective`."""
        return clipped_grpo_loss(
            logprobs=scores.logprobs,
            sampler_logprobs=batch.sampler_logprobs,
            advantages=batch.advantages,
            epsilon=self.epsilon,
            epsilon_high=self.epsilon_high,
        )


class CrossEntropy(msgspec.Struct, frozen=True, kw_only=True):
    """See :func:`~longrein.train.loss.cross_entropy_loss`."""

    def teaches(self, row: Row) -> bool:
        """Every row does, unless it weighs nothing."""
        return row.weight != 0.0

    def losses(self, scores: TokenScores, batch: MicroBatch) -> TokenLosses:
        """See :class:`Objective`."""
        return cross_entropy_loss(logprobs=scores.logprobs, sampler_logprobs=batch.sampler_logprobs)
