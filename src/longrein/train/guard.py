"""No step is taken along a gradient that is not finite."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from longrein.errors import DivergedError
from longrein.train.sharded import whole
from longrein.train.step_metrics import StepMetrics

PATIENCE = 3
"""Refused steps in a row that end the run."""
KEPT_STEPS = 10
"""Refused steps of a run whose rows are kept."""


class NonFiniteGuard(TrainerCallback):
    """Empties the gradients of a bad step, which makes the optimizer's step do nothing.

    The library calls :meth:`on_pre_optimizer_step` after clipping and before the optimizer.

    Args:
        metrics: where refused steps are counted.
        keep: writes the rows of the step of that number down for replay, and says where.
    """

    def __init__(self, metrics: StepMetrics, keep: Callable[[int], Path]) -> None:
        self._metrics = metrics
        self._keep = keep
        self._kept: list[Path] = []
        self._in_a_row = 0
        self._loss_was_finite = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget the last step's loss."""
        self._loss_was_finite = True

    def refuses_loss(self, model: nn.Module, loss: torch.Tensor) -> bool:
        """Whether the step ends here; drops its gradients if so."""
        self._loss_was_finite = bool(torch.isfinite(loss))
        if not self._loss_was_finite:
            model.zero_grad()
        return not self._loss_was_finite

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse gradients that are not finite.

        Raises:
            DivergedError: three steps in a row.
        """
        model: nn.Module = kwargs["model"]
        if self._loss_was_finite and _gradients_are_finite(model):
            self._in_a_row = 0
            return
        model.zero_grad()
        self._metrics.add({"count/non_finite_steps": 1.0})
        if len(self._kept) < KEPT_STEPS:
            self._kept.append(self._keep(state.global_step + 1))
        self._in_a_row += 1
        if self._in_a_row >= PATIENCE:
            what = "gradients" if self._loss_was_finite else "loss"
            raise DivergedError(
                f"step {state.global_step + 1}: the {what} was not finite for {PATIENCE} steps in a row; lower the "
                "learning rate, train in float32, and look at logprob_gap_max and the rewards of these steps; rows of "
                f"the first {KEPT_STEPS} refused steps are in {self._kept[-1].parent}"
            )


def _gradients_are_finite(model: nn.Module) -> bool:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return bool(torch.isfinite(whole(torch.nn.utils.get_total_norm(gradients)))) if gradients else True
