"""Supervised training on the same rows that GRPO trains on: how a small policy gets its warm start."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from transformers import TrainerCallback

from longrein.errors import BatchError
from longrein.train.adapters import with_adapters
from longrein.train.load_model import ModelSource, load_model
from longrein.train.objective import CrossEntropy
from longrein.train.step_config import StepConfig
from longrein.train.step_trainer import StepLoader, StepLoss, StepRows, StepTrainer
from longrein.types import Row


@dataclass
class SftConfig(StepConfig):
    """Arguments of :func:`train_sft`. ``per_device_train_batch_size`` counts rollouts (demonstrations), not rows."""


class SftResult(msgspec.Struct, frozen=True, kw_only=True):
    """What supervised training left behind."""

    model_folder: str
    """A reloadable model with tokenizer and chat template."""
    losses: tuple[float, ...]
    """Mean cross-entropy a trained token, one a log line (a step, by default); a refused step has none."""


def train_sft(
    model: ModelSource,
    rows: Sequence[Row],
    config: SftConfig,
    processing_class: Any = None,
    callbacks: Sequence[TrainerCallback] = (),
    peft_config: Any = None,
) -> SftResult:
    """Train cross-entropy on the tokens that rows mark as trained, and save the model to ``config.output_dir``.

    Args:
        model: folder, hub id or loaded model (which is then changed in place).
        rows: demonstrations; advantages and sampler logprobs do not matter.
        config: ``max_steps`` or ``num_train_epochs`` bounds the training.
        processing_class: the tokenizer to save; loaded from the model's folder when left out.
        callbacks: as in the library.
        peft_config: a ``peft.LoraConfig``: new adapters are put on the model, they alone train, and they are saved.

    Raises:
        ConfigError: adapters that cannot be trained and published.
        BatchError: no rows, or a row that cannot be trained on.
        CheckpointError: model or tokenizer cannot be loaded, or not whole.
        DivergedError: loss or gradients were not finite three times in a row.
    """
    steps = _ShuffledSteps(rows, rollouts_per_step=config.rollouts_per_step, seed=config.seed)
    trainer = StepTrainer(
        model=with_adapters(load_model(model, config), peft_config, config.seed),
        args=config,
        step_loss=StepLoss(objective=CrossEntropy(), temperature=1.0, aggregation="token"),
        loader=StepLoader(steps, len(steps)),
        processing_class=processing_class,
        callbacks=callbacks,
    )
    trainer.train()
    trainer.save_model()
    losses = tuple(float(line["loss"]) for line in trainer.state.log_history if "loss" in line)
    return SftResult(model_folder=str(config.output_dir), losses=losses)


class _ShuffledSteps:
    """One epoch an iteration, each in a new seeded order; rows of one rollout stay in one step."""

    def __init__(self, rows: Sequence[Row], *, rollouts_per_step: int, seed: int) -> None:
        rollouts: dict[str, list[Row]] = {}
        for row in rows:
            rollouts.setdefault(row.rollout_id, []).append(row)
        if not rollouts:
            raise BatchError("supervised training got no rows; collect demonstrations first")
        self._rollouts = list(rollouts.values())
        self._rollouts_per_step = rollouts_per_step
        self._random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return math.ceil(len(self._rollouts) / self._rollouts_per_step)

    def __iter__(self) -> Iterator[StepRows]:
        order = self._random.permutation(len(self._rollouts))
        for first in range(0, len(order), self._rollouts_per_step):
            chosen = order[first : first + self._rollouts_per_step]
            rows = tuple(row for index in chosen for row in self._rollouts[int(index)])
            yield StepRows(rows=rows, metrics={"rows": len(rows)})
