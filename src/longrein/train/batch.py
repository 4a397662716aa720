"""Rows of one step -> micro-batches under a token budget, with one denominator for the whole step.

The order is always: check the rows, give each its share of the step, leave out what teaches nothing, cut. Since the
shares are fixed before anything is cut, the gradient cannot depend on the cutting (invariant 3).
"""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from longrein.errors import BatchError
from longrein.types import Row

Aggregation = Literal["token", "rollout"]


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can be fed."""

    vocab_size: int
    context_length: int


class FreshRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows within the staleness bound, and how many were not."""

    rows: tuple[Row, ...]
    stale_rows: int


class SharedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row that knows what each of its trained tokens weighs in the step's loss."""

    row: Row
    share: float


class MicroBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One forward and backward pass: ``b`` rows padded on the right to ``t`` tokens, ``n`` of which train.

    There is no attention mask: under causal attention a token never sees the padding to its right, and without a
    mask the fastest attention kernels can run.
    """

    input_ids: Tensor
    """``[b, t]`` int64. Padding repeats the row's last token."""
    predictors: Tensor
    """``[n]`` int64: positions in the flattened ``[b * t]`` whose output predicts a trained token."""
    targets: Tensor
    """``[n]`` int64: the trained tokens."""
    sampler_logprobs: Tensor
    """``[n]`` float32."""
    advantages: Tensor
    """``[n]`` float64."""
    shares: Tensor
    """``[n]`` float64."""

    def to(self, device: torch.device, dtype: torch.dtype) -> MicroBatch:
        """The same on a device, with the real-valued parts in ``dtype``."""
        return MicroBatch(
            input_ids=self.input_ids.to(device),
            predictors=self.predictors.to(device),
            targets=self.targets.to(device),
            sampler_logprobs=self.sampler_logprobs.to(dtype).to(device),
            advantages=self.advantages.to(dtype).to(device),
            shares=self.shares.to(dtype).to(device),
        )


def fresh_rows(rows: Iterable[Row], *, policy_version: int, max_staleness: int) -> FreshRows:
    """Leave out rows with a token that was sampled more than ``max_staleness`` versions ago (invariant 5)."""
    every = tuple(rows)
    fresh = tuple(row for row in every if policy_version - row.min_policy_version <= max_staleness)
    return FreshRows(rows=fresh, stale_rows=len(every) - len(fresh))


def check_rows(rows: Sequence[Row], limits: ModelLimits) -> None:
    """Refuse rows that would crash or poison a step, before it begins.

    Raises:
        BatchError: names the rollout and what is wrong with its row.
    """
    for row in rows:
        if problem := _problem(row, limits):
            raise BatchError(f"rollout {row.rollout_id} (group {row.group_id}): {problem}")


def share_step(rows: Sequence[Row], aggregation: Aggregation) -> tuple[SharedRow, ...]:
    """Give each row its share of the step.

    ``token``: a mean over all trained tokens of the step. ``rollout``: a mean over rollouts of each rollout's mean
    over its trained tokens. Neither looks at rows, so neither depends on how a rollout forked.
    """
    trained: dict[str, int] = {}
    for row in rows:
        trained[row.rollout_id] = trained.get(row.rollout_id, 0) + int(row.loss_mask.sum())
    total = sum(trained.values())
    if aggregation == "token":
        return tuple(SharedRow(row=row, share=row.weight / total) for row in rows)
    return tuple(SharedRow(row=row, share=row.weight / (len(trained) * trained[row.rollout_id])) for row in rows)


def micro_batches(shared: Iterable[SharedRow], micro_batch_tokens: int) -> tuple[MicroBatch, ...]:
    """Cut rows into padded micro-batches of at most ``micro_batch_tokens`` tokens, padding included.

    Rows of like length come together, longest first. A row longer than the budget is a micro-batch of its own.
    """
    waiting = sorted(shared, key=lambda item: _inputs(item.row), reverse=True)
    batches: list[MicroBatch] = []
    while waiting:
        count = max(1, micro_batch_tokens // _inputs(waiting[0].row))
        batches.append(_pad(waiting[:count]))
        waiting = waiting[count:]
    return tuple(batches)


def _inputs(row: Row) -> int:
    """Tokens that must be fed: all before the last trained one."""
    return int(np.flatnonzero(row.loss_mask)[-1])


def _pad(items: Sequence[SharedRow]) -> MicroBatch:
    width = _inputs(items[0].row)
    input_ids = np.empty((len(items), width), np.int64)
    trained = [np.flatnonzero(item.row.loss_mask) for item in items]
    for line, item in enumerate(items):
        size = _inputs(item.row)
        input_ids[line, :size] = item.row.token_ids[:size]
        input_ids[line, size:] = item.row.token_ids[size - 1]
    sizes = [positions.size for positions in trained]
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids),
        predictors=torch.from_numpy(
            np.concatenate([line * width + positions - 1 for line, positions in enumerate(trained)])
        ),
        targets=torch.from_numpy(
            np.concatenate([item.row.token_ids[at] for item, at in zip(items, trained, strict=True)]).astype(np.int64)
        ),
        sampler_logprobs=torch.from_numpy(
            np.concatenate([item.row.logprobs[at] for item, at in zip(items, trained, strict=True)])
        ),
        advantages=torch.from_numpy(np.repeat([float(item.row.advantage) for item in items], sizes)),
        shares=torch.from_numpy(np.repeat([item.share for item in items], sizes)),
    )


def _problem(row: Row, limits: ModelLimits) -> str:
    return _shape_problem(row) or _value_problem(row, limits)


def _shape_problem(row: Row) -> str:
    shape = row.token_ids.shape
    if row.token_ids.ndim != 1 or row.loss_mask.shape != shape or row.logprobs.shape != shape:
        return (
            f"token ids {shape}, loss mask {row.loss_mask.shape} and logprobs {row.logprobs.shape} must be "
            "one-dimensional and of one length"
        )
    if not row.loss_mask.any():
        return "no token trains; leave such rows out"
    if row.loss_mask[0]:
        return "its first token trains, but nothing comes before it that could predict it"
    return ""


def _value_problem(row: Row, limits: ModelLimits) -> str:
    low, high = int(row.token_ids.min()), int(row.token_ids.max())
    if low < 0 or high >= limits.vocab_size:
        bad = low if low < 0 else high
        return f"token id {bad} is outside the model's vocabulary of {limits.vocab_size}; is this its tokenizer?"
    if row.token_ids.size > limits.context_length:
        return (
            f"its {row.token_ids.size} tokens exceed the model's context of {limits.context_length}; "
            "lower the engine's context_length"
        )
    if not np.isfinite(row.logprobs).all():
        return "a sampler logprob is not finite"
    if not (np.isfinite(row.advantage) and np.isfinite(row.weight)):
        return f"advantage {row.advantage} and weight {row.weight} must be finite; check the reward functions"
    return ""
