"""What keeps the policy near a reference."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longrein.train.batch import MicroBatch
from longrein.train.losses.kl import kl_k3
from longrein.train.score import TokenScores, scorer_for


class Penalty(Protocol):
    """A cost that each token has beside the policy loss, whatever its advantage."""

    @property
    def weight(self) -> float:
        """What multiplies :meth:`costs` in the loss; 0 for none."""
        ...

    def costs(self, scores: TokenScores, batch: MicroBatch) -> Tensor:
        """``[n]``, differentiable."""
        ...


class NoPenalty:
    """No reference."""

    weight = 0.0

    def costs(self, scores: TokenScores, batch: MicroBatch) -> Tensor:
        """Zeros."""
        return torch.zeros_like(scores.logprobs)


class KlPenalty:
    """KL to a frozen copy of a model, which is scored on each micro-batch; its memory is that of one more model.

    Args:
        model: copied as it is now.
        weight: GRPO's beta.
        temperature: that of sampling, as for the policy.
    """

    def __init__(self, model: PreTrainedModel, *, weight: float, temperature: float) -> None:
        self.weight = weight
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self._scorer = scorer_for(self._model, temperature)

    def costs(self, scores: TokenScores, batch: MicroBatch) -> Tensor:
        """See :func:`~longrein.train.losses.kl.kl_k3`."""
        cast(nn.Module, self._model).to(batch.input_ids.device)
        with torch.no_grad():
            reference = self._scorer.score(self._model, batch).logprobs
        return kl_k3(scores.logprobs, reference)


class AdaptersOffPenalty:
    """KL to the model in training without its adapters: no second model is kept.

    Args:
        model: a ``peft.PeftModel``.
        weight: GRPO's beta.
        temperature: that of sampling, as for the policy.
    """

    def __init__(self, model: nn.Module, *, weight: float, temperature: float) -> None:
        self.weight = weight
        self._model = model
        self._scorer = scorer_for(model, temperature)

    def costs(self, scores: TokenScores, batch: MicroBatch) -> Tensor:
        """See :func:`~longrein.train.losses.kl.kl_k3`."""
        with torch.no_grad(), _without_adapters(self._model):
            reference = self._scorer.score(self._model, batch).logprobs
        return kl_k3(scores.logprobs, reference)


@contextmanager
def _without_adapters(model: nn.Module) -> Generator[None, None, None]:
    """In evaluation mode, as a frozen reference is. What trains, and in which mode, is afterwards as before."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = model.training
    model.eval()
    try:
        with cast(Any, model).disable_adapter():
            yield
    finally:
        # PEFT takes the gradients off while adapters are disabled, and puts them on all adapters afterwards.
        model.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_(True)
        model.train(training)
