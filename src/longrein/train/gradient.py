"""The gradient of one step, summed over its micro-batches and over ranks."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import msgspec
import torch
from torch import Tensor, nn

from longrein.train.batch import MicroBatch
from longrein.train.measure import Measured, StepMeasures, step_means
from longrein.train.objective import Objective
from longrein.train.passes import Pass, passes
from longrein.train.ranks import OneRank, Ranks
from longrein.train.router_loss import NO_ROUTER_LOSS, RouterLoss
from longrein.train.score import Scorer
from longrein.train.sequences import SequenceSums


class WholeStep(msgspec.Struct, frozen=True, kw_only=True):
    """What the micro-batches of one rank are a part of."""

    ranks: Ranks
    """Who computes the others."""
    policy_version: int
    """Of the weights in training, for measuring by staleness."""
    router_loss: RouterLoss = NO_ROUTER_LOSS
    """Added to the objective's, see :func:`~longrein.train.router_loss.router_loss_for`."""


ALONE = WholeStep(ranks=OneRank(), policy_version=0)


class StepTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the scored tokens of a step."""

    loss: Tensor
    """Scalar: the loss of the step, detached."""
    tokens: int
    """Scored tokens: those that train, less those whose gradient is zero for certain."""
    fed_tokens: int
    """Tokens that went through the model with gradient, padding included."""
    row_tokens: int
    """Inputs of all rows, those that rows share counted for each."""
    measures: dict[str, float]
    """See :func:`~longrein.train.measure.step_means`."""


def add_gradient(
    model: nn.Module,
    batches: Sequence[MicroBatch],
    *,
    scorer: Scorer,
    objective: Objective,
    backward: Callable[[Tensor], object],
    around: Callable[[Pass], AbstractContextManager[object]],
    step: WholeStep = ALONE,
) -> StepTotals:
    """Add the gradient of a whole step to ``model``'s parameters, together with the other ranks.

    Args:
        model: in training mode; may be wrapped. What wraps it averages gradients over ranks, as DDP and FSDP do.
        batches: those of this rank, on any device; some rank has one.
        scorer: see :func:`~longrein.train.score.scorer_for`.
        objective: what to optimise.
        backward: called once a pass with its scalar part of the step's loss.
        around: context of each pass (autocast; no gradient exchange before the last).
        step: what the micro-batches are a part of.
    """
    ranks, router_loss = step.ranks, step.router_loss
    parameter = next(model.parameters())
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    loss = torch.zeros((), dtype=dtype, device=parameter.device)
    balances = torch.zeros_like(loss)
    measures = StepMeasures(loss)
    sums = SequenceSums(batches, ranks, like=loss)
    if objective.needs_sequences:
        sums.add_split_rollouts(model, scorer, around)
    for turn in passes(batches, ranks):
        batch = turn.batch.to(parameter.device, dtype)
        with around(turn):
            with router_loss.watching(model) as readings:
                scores = scorer.score(model, batch)
            terms = objective.terms(scores, batch, sums.of_tokens(scores.logprobs, batch))
            balance = router_loss.of(readings, batch)
            part = (terms.losses * batch.shares).sum() + router_loss.coefficient * balance
            # Who wraps the model divides by the ranks; shares already divide by the whole step.
            backward(part * ranks.count)
        loss += part.detach()
        balances += balance.detach()
        if turn.counts:
            measures.add(terms, scores, turn.batch)
    parts = ranks.gathered(_PartialTotals.of(batches, loss, balances, measures))
    balanced = router_loss.logged(sum(part.balances for part in parts))
    totals = _totals(parts, loss, step.policy_version)
    return msgspec.structs.replace(totals, measures={**totals.measures, **balanced})


class _PartialTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank adds to a step."""

    loss: float
    balances: float
    """Of the router loss, before its coefficient."""
    tokens: int
    fed_tokens: int
    row_tokens: int
    measured: Measured

    @classmethod
    def of(
        cls, batches: Sequence[MicroBatch], loss: Tensor, balances: Tensor, measures: StepMeasures
    ) -> _PartialTotals:
        return cls(
            loss=loss.item(),
            balances=balances.item(),
            tokens=sum(batch.targets.numel() for batch in batches),
            fed_tokens=sum(batch.input_ids.numel() for batch in batches),
            row_tokens=sum(batch.row_tokens for batch in batches),
            measured=measures.take(),
        )


def _totals(parts: Sequence[_PartialTotals], like: Tensor, policy_version: int) -> StepTotals:
    return StepTotals(
        loss=like.new_tensor(sum(part.loss for part in parts)),
        tokens=sum(part.tokens for part in parts),
        fed_tokens=sum(part.fed_tokens for part in parts),
        row_tokens=sum(part.row_tokens for part in parts),
        measures=step_means([part.measured for part in parts], policy_version),
    )
