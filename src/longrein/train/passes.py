"""The passes of one rank over its micro-batches: as many as any other rank makes.

Sharded weights are put together by all ranks at once in every pass, so a rank with fewer micro-batches joins in with a
token that weighs nothing.
"""

# torch is partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import torch

from longrein.train.asked import Asked
from longrein.train.batch import MicroBatch
from longrein.train.layouts import PaddedRows
from longrein.train.ranks import Ranks


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One forward (and backward) pass."""

    batch: MicroBatch
    counts: bool
    """False where the rank only joins in."""
    is_last: bool
    """Gradients are exchanged in this one."""


def passes(batches: Sequence[MicroBatch], ranks: Ranks) -> Iterator[Pass]:
    """One for each micro-batch of this rank, and as many idle ones as it takes."""
    most = max(ranks.gathered(len(batches)))
    for index in range(most):
        counts = index < len(batches)
        batch = batches[index] if counts else _idle_batch()
        yield Pass(batch=batch, counts=counts, is_last=index == most - 1)


def _idle_batch() -> MicroBatch:
    """One token that predicts one, of share 0."""
    zero, nothing = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.float64)
    return MicroBatch(
        layout=PaddedRows(),
        row_tokens=0,
        input_ids=zero.unsqueeze(0),
        asked=Asked.of(zero.numpy(), zero.numpy()),
        sampler_logprobs=torch.zeros(1),
        advantages=nothing,
        shares=nothing,
        sequences=zero,
        sequence_sizes=nothing + 1,
        is_split=torch.zeros(1, dtype=torch.bool),
        versions=zero,
    )
