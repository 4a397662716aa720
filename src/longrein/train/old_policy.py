"""Which policy the ratio of a loss compares to."""

from __future__ import annotations

from typing import Protocol

import msgspec
import torch
from torch import Tensor

from longrein.train.batch import MicroBatch


class OldPolicy(Protocol):
    """Gives each trained token its old logprob."""

    @property
    def differs_from_current(self) -> bool:
        """False where the old logprobs are those of the weights in training, so that every ratio is 1."""
        ...

    def logprobs(self, current: Tensor, batch: MicroBatch) -> Tensor:
        """``[n]`` current logprobs -> ``[n]`` old ones, without gradient."""
        ...

    def sequence_log_ratios(self, sequence_sums: Tensor, batch: MicroBatch) -> Tensor:
        """``[n]``: mean over the token's rollout of current minus old logprobs.

        Args:
            sequence_sums: ``[n]``: the rollout's sum of current minus *sampler* logprobs.
            batch: where the tokens are.
        """
        ...


class SamplerAsOld(msgspec.Struct, frozen=True, kw_only=True):
    """The sampler: one ratio corrects staleness and the gap between engine and trainer."""

    differs_from_current: bool = True

    def logprobs(self, current: Tensor, batch: MicroBatch) -> Tensor:
        """As the engine reported them."""
        return batch.sampler_logprobs

    def sequence_log_ratios(self, sequence_sums: Tensor, batch: MicroBatch) -> Tensor:
        """See :class:`OldPolicy`."""
        return sequence_sums / batch.sequence_sizes


class RecomputedOld(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's own weights before this optimizer step.

    A batch gets one optimizer step here, so those are the weights in training, and the old logprobs are the current
    ones without their gradient: exact, and no pass of their own. Every ratio is 1, no clip binds, and what corrects is
    :mod:`longrein.train.correction`.
    """

    differs_from_current: bool = False

    def logprobs(self, current: Tensor, batch: MicroBatch) -> Tensor:
        """The current ones, detached."""
        return current.detach()

    def sequence_log_ratios(self, sequence_sums: Tensor, batch: MicroBatch) -> Tensor:
        """Zero: nothing differs."""
        return torch.zeros_like(sequence_sums)
