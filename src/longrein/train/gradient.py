"""The gradient of one step, summed over its micro-batches."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import msgspec
import torch
from torch import Tensor, nn

from longrein.train.batch import MicroBatch
from longrein.train.objective import Objective
from longrein.train.score import Scorer


class StepTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the scored tokens of a step."""

    loss: Tensor
    """Scalar: the loss of the step, detached."""
    tokens: int
    """Scored tokens: those that train, less those whose gradient is zero for certain."""
    fed_tokens: int
    """Tokens that went through the model, padding included."""
    measures: dict[str, float]
    """``logprob_gap_mean``, ``logprob_gap_max``, ``clip_fraction``, ``entropy`` over the scored tokens."""


def add_gradient(
    model: nn.Module,
    batches: Sequence[MicroBatch],
    *,
    scorer: Scorer,
    objective: Objective,
    backward: Callable[[Tensor], object],
    around: Callable[[int], AbstractContextManager[object]],
) -> StepTotals:
    """Add the gradient of a whole step to ``model``'s parameters.

    Args:
        model: in training mode; may be wrapped.
        batches: at least one, on any device.
        scorer: see :func:`~longrein.train.score.scorer_for`.
        objective: what to optimise.
        backward: called once a micro-batch with its scalar part of the step's loss.
        around: context for the micro-batch of that index (autocast; no gradient exchange before the last).
    """
    parameter = next(model.parameters())
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    loss = torch.zeros((), dtype=dtype, device=parameter.device)
    sums = torch.zeros(4, dtype=dtype, device=parameter.device)
    for index, cpu_batch in enumerate(batches):
        batch = cpu_batch.to(parameter.device, dtype)
        with around(index):
            scores = scorer.score(model, batch)
            terms = objective.losses(scores, batch)
            part = (terms.losses * batch.shares).sum()
            backward(part)
        loss += part.detach()
        gaps = terms.log_ratios.abs()
        sums[:3] += torch.stack([gaps.sum(), terms.clipped.sum().to(dtype), scores.entropies.sum()])
        sums[3] = torch.maximum(sums[3], gaps.max())
    tokens = sum(batch.targets.numel() for batch in batches)
    gap, clipped, entropy, gap_max = sums.tolist()
    return StepTotals(
        loss=loss,
        tokens=tokens,
        fed_tokens=sum(batch.input_ids.numel() for batch in batches),
        measures={
            "logprob_gap_mean": gap / tokens,
            "logprob_gap_max": gap_max,
            "clip_fraction": clipped / tokens,
            "entropy": entropy / tokens,
        },
    )
