"""Rows that would crash or poison a step are found before it begins."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from longrein.errors import BatchError
from longrein.types import Row


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can be fed."""

    vocab_size: int
    context_length: int


def check_rows(rows: Sequence[Row], limits: ModelLimits) -> None:
    """Refuse rows that would crash or poison a step, before it begins.

    Raises:
        BatchError: names the rollout and what is wrong with its row.
    """
    for row in rows:
        if problem := _problem(row, limits):
            raise BatchError(f"rollout {row.rollout_id} (group {row.group_id}): {problem}")


def _problem(row: Row, limits: ModelLimits) -> str:
    return _dtype_problem(row) or _shape_problem(row) or _value_problem(row, limits)


def _dtype_problem(row: Row) -> str:
    """Casting would hide ids cut to integers, and masks that are weights."""
    kinds = {"token_ids": np.integer, "loss_mask": np.bool_, "logprobs": np.floating}
    problems = [
        f"{name} has dtype {getattr(row, name).dtype}, and {kind.__name__.removesuffix('_')} is needed"
        for name, kind in kinds.items()
        if not np.issubdtype(getattr(row, name).dtype, kind)
    ]
    return "; ".join(problems)


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
    return non_finite_problem(row)


def non_finite_problem(row: Row) -> str:
    """What of a row's numbers is not finite; empty where all are."""
    if not np.isfinite(row.logprobs).all():
        return "a sampler logprob is not finite"
    if not (np.isfinite(row.advantage) and np.isfinite(row.weight)):
        return f"advantage {row.advantage} and weight {row.weight} must be finite; check the reward functions"
    return ""
