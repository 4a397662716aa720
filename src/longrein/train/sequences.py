"""Sums over whole rollouts, wherever their rows were put.

A rollout is one sequence, however it forked (invariant 3), and its rows can land in different micro-batches. Sequence
losses and corrections only need the *value* of a rollout's sum: their gradient flows through each token by itself. So
the sums of rollouts that were split come from one pass without gradient over the micro-batches that hold them, and all
others are summed where they are. Where no rollout is split, nothing is computed twice.
"""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from longrein.train.batch import MicroBatch
from longrein.train.passes import Pass, passes
from longrein.train.ranks import Ranks
from longrein.train.score import Scorer


class SequenceSums:
    """Sums of trainer minus sampler logprobs over the trained tokens of each rollout of a step.

    Args:
        batches: those of this rank.
        ranks: who computes the others of the step.
        like: a tensor of the dtype and on the device of the sums.
    """

    def __init__(self, batches: Sequence[MicroBatch], ranks: Ranks, like: Tensor) -> None:
        self._batches = batches
        self._ranks = ranks
        here = max((int(batch.sequences.max()) for batch in batches), default=-1)
        self._split = like.new_zeros(1 + max(ranks.gathered(here)))

    @torch.no_grad()
    def add_split_rollouts(
        self, model: nn.Module, scorer: Scorer, around: Callable[[Pass], AbstractContextManager[object]]
    ) -> None:
        """Score the micro-batches that hold a part of a split rollout, on all ranks together.

        Args:
            model: in the mode in which it trains; with dropout, this pass sees other noise than the next.
            scorer: as for the gradient.
            around: as for the gradient.
        """
        split = [batch for batch in self._batches if batch.is_split.any()]
        for turn in passes(split, self._ranks):
            batch = turn.batch.to(self._split.device, self._split.dtype)
            with around(turn):
                logprobs = scorer.score(model, batch).logprobs
            gaps = logprobs.to(self._split.dtype) - batch.sampler_logprobs
            if turn.counts:
                self._split.index_add_(0, batch.sequences, gaps)
        self._split = self._ranks.summed(self._split)

    @torch.no_grad()
    def of_tokens(self, logprobs: Tensor, batch: MicroBatch) -> Tensor:
        """``[n]`` logprobs of a micro-batch's tokens -> ``[n]`` sums over each token's whole rollout.

        A rollout that was split has sum 0 unless :meth:`add_split_rollouts` was called.
        """
        gaps = logprobs.to(self._split.dtype) - batch.sampler_logprobs
        here = torch.zeros_like(self._split).index_add(0, batch.sequences, gaps)
        return torch.where(batch.is_split, self._split[batch.sequences], here[batch.sequences])
