"""The smallest policies there are, so that the whole step can be checked without a language model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longrein.train.batch import MicroBatch, micro_batches, share_step
from longrein.train.choose import policy_objective
from longrein.train.gradient import StepTotals, WholeStep, add_gradient
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.loss_choices import LossChoices
from longrein.train.objective import Objective
from longrein.train.ranks import OneRank
from longrein.train.reference import NoPenalty
from longrein.train.score import TokenScores
from longrein.types import Row
from tests.train.toy import row


class Table(nn.Module):
    """A policy that is a table of logprobs: token id -> its logprob, whatever came before."""

    def __init__(self, logprobs: Sequence[float]) -> None:
        super().__init__()
        self.logprobs = nn.Parameter(torch.tensor(logprobs, dtype=torch.float64))


class TableScorer:
    def score(self, model: nn.Module, batch: MicroBatch) -> TokenScores:
        assert isinstance(model, Table)
        logprobs = model.logprobs[batch.targets]
        return TokenScores(logprobs=logprobs, entropies=torch.zeros_like(logprobs).detach())


class Bandit(nn.Module):
    """A policy that is a table of logits: last token -> distribution over the next."""

    def __init__(self, states: int, actions: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(states, actions, dtype=torch.float64))


class BanditScorer:
    def score(self, model: nn.Module, batch: MicroBatch) -> TokenScores:
        assert isinstance(model, Bandit)
        came_before = batch.input_ids.flatten()[batch.predictors]
        logprobs = torch.log_softmax(model.logits[came_before], -1)
        return TokenScores(
            logprobs=logprobs.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1),
            entropies=-(logprobs.exp() * logprobs).sum(-1).detach(),
        )


def choices(**changes: Any) -> LossChoices:
    """The configuration's defaults, but for what is said."""
    names = LossChoices.__struct_fields__
    defaults = {name: getattr(AsyncGRPOConfig, name) for name in names}
    made = LossChoices(**{**defaults, **{name: value for name, value in changes.items() if name in names}})
    made.check()
    return made


def objective(**changes: Any) -> Objective:
    return policy_objective(choices(**changes), NoPenalty())


def sampled_row(first_id: int, logprobs: Sequence[float], **fields: Any) -> Row:
    """A row that trains ids ``first_id, first_id + 1, ...`` after one token of prompt."""
    size = len(logprobs)
    return row(
        [0, *range(first_id, first_id + size)],
        range(1, size + 1),
        logprobs=np.array([0.0, *logprobs], np.float32),
        **fields,
    )


def step(
    model: nn.Module, scorer: Any, rows: Sequence[Row], to_optimise: Objective, aggregation: Any, **options: Any
) -> StepTotals:
    """One step's gradient in ``model``, by the code that trains language models."""
    shared = share_step(rows, aggregation, options.get("constant_tokens", 1))
    taught = [item for item in shared if to_optimise.teaches(item.row)]
    return add_gradient(
        model,
        micro_batches(taught, options.get("budget", 10_000)),
        scorer=scorer,
        objective=to_optimise,
        backward=lambda loss: loss.backward(),
        around=lambda _index: nullcontext(),
        step=WholeStep(ranks=OneRank(), policy_version=options.get("policy_version", 0)),
    )


def gradient_of(parameter: Tensor) -> np.ndarray:
    assert parameter.grad is not None
    return parameter.grad.numpy()
