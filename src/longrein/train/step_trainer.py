"""``transformers.Trainer`` whose batch is one whole optimizer step, made of rows.

Callbacks, trackers, schedulers, clipping and checkpoints stay the library's. What is ours: where a step comes from,
its one denominator, its micro-batches, and what is measured of it.
"""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from os import PathLike
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
)
from transformers.trainer_callback import ProgressCallback
from transformers.utils import logging as library_logging

from longrein.errors import CheckpointError
from longrein.train.batch import Aggregation, MicroBatch, ModelLimits, check_rows, micro_batches, share_step
from longrein.train.gradient import StepTotals, add_gradient
from longrein.train.guard import NonFiniteGuard
from longrein.train.objective import Objective
from longrein.train.score import scorer_for
from longrein.train.step_config import StepConfig
from longrein.train.step_metrics import StepMetrics
from longrein.types import Row

ModelSource = str | PathLike[str] | PreTrainedModel


class StepRows(msgspec.Struct, frozen=True, kw_only=True):
    """What one optimizer step trains on."""

    rows: tuple[Row, ...]
    metrics: dict[str, float]
    """Logged with the step, by the rules of :mod:`longrein.train.step_metrics`."""


class StepLoss(msgspec.Struct, frozen=True, kw_only=True):
    """How a step becomes a gradient."""

    objective: Objective
    temperature: float
    aggregation: Aggregation


class StepLoader:
    """What the library sees as its dataloader: each item is a whole step."""

    def __init__(self, steps: Iterable[StepRows], steps_per_epoch: int) -> None:
        self._steps = steps
        self._steps_per_epoch = steps_per_epoch

    def __len__(self) -> int:
        return self._steps_per_epoch

    def __iter__(self) -> Iterator[dict[str, StepRows]]:
        return ({"step": step} for step in self._steps)


class StepTrainer(Trainer):
    """Trains a causal LM on steps of rows. See :class:`~longrein.train.trainer.AsyncGRPOTrainer` and ``train_sft``.

    Args:
        model: folder, hub id or loaded model.
        args: gradient accumulation is part of the step's size here; the library is told 1.
        step_loss: how a step becomes a gradient.
        loader: where steps come from.
        processing_class: the tokenizer, saved with the model; loaded from the model's folder when left out.
        callbacks: as in the library.
        train_dataset: kept for those who look at it; the loader decides what trains.

    Raises:
        CheckpointError: the model cannot be loaded.
    """

    def __init__(
        self,
        *,
        model: ModelSource,
        args: StepConfig,
        step_loss: StepLoss,
        loader: StepLoader,
        processing_class: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
        train_dataset: Any = None,
    ) -> None:
        library_args = copy.copy(args)
        library_args.gradient_accumulation_steps = 1
        loaded = load_model(model, args)
        tokenizer = processing_class or AutoTokenizer.from_pretrained(loaded.config.name_or_path)
        super().__init__(
            model=loaded,
            args=library_args,
            processing_class=tokenizer,
            callbacks=list(callbacks),
            train_dataset=train_dataset,
        )
        if not any(isinstance(callback, PrinterCallback | ProgressCallback) for callback in callbacks):
            self.remove_callback(PrinterCallback)
        self._step_loss = step_loss
        self._loader = loader
        self._micro_batch_tokens = args.micro_batch_tokens
        self._limits = model_limits(loaded)
        self._scorer = scorer_for(loaded, step_loss.temperature)
        self.step_metrics = StepMetrics()
        """Numbers added here are logged with the step."""
        self.step_rows: tuple[Row, ...] = ()
        """Rows of the step in progress."""
        self._guard = NonFiniteGuard(self.step_metrics)
        self.add_callback(self._guard)

    def get_train_dataloader(self) -> Any:
        """The loader given at construction."""
        return self._loader

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Leave the gradient of one whole step in ``model``; returns its loss.

        Raises:
            BatchError: a row that cannot be trained on, before anything is computed.
        """
        step: StepRows = inputs["step"]
        started_s = time.perf_counter()
        model.train()
        self.step_rows = step.rows
        self.step_metrics.add(step.metrics)
        batches = self._plan(step.rows)
        totals = self._add_gradient(model, batches) if batches else None
        self._measure(step, totals, time.perf_counter() - started_s)
        if totals is None or self._guard.refuses_loss(model, totals.loss):
            return torch.zeros((), device=self.args.device)
        return totals.loss.to(torch.float32)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write a folder that ``from_pretrained`` reads: weights, config, tokenizer and chat template."""
        with _progress_bars(shown=not self.args.disable_tqdm):
            super().save_model(output_dir, _internal_call)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what was measured since the last log line."""
        super().log({**logs, **self.step_metrics.take()}, start_time)

    def _plan(self, rows: Sequence[Row]) -> tuple[MicroBatch, ...]:
        check_rows(rows, self._limits)
        shared = share_step(rows, self._step_loss.aggregation)
        taught = [item for item in shared if self._step_loss.objective.teaches(item.row)]
        return micro_batches(taught, self._micro_batch_tokens)

    def _add_gradient(self, model: nn.Module, batches: Sequence[MicroBatch]) -> StepTotals:
        def around(index: int) -> AbstractContextManager[object]:
            stack = ExitStack()
            stack.enter_context(self.accelerator.autocast())
            if index < len(batches) - 1:
                stack.enter_context(self.accelerator.no_sync(model))
            return stack

        return add_gradient(
            model,
            batches,
            scorer=self._scorer,
            objective=self._step_loss.objective,
            backward=self.accelerator.backward,
            around=around,
        )

    def _measure(self, step: StepRows, totals: StepTotals | None, seconds: float) -> None:
        trained = sum(int(row.loss_mask.sum()) for row in step.rows)
        self.step_metrics.add(
            {"trained_tokens": trained, "train_s": seconds, "count/empty_steps": float(totals is None)}
        )
        if totals is not None:
            self.step_metrics.add({**totals.measures, "tokens_per_s": totals.fed_tokens / seconds})


def load_model(model: ModelSource, args: StepConfig) -> PreTrainedModel:
    """A loaded model as it is, or one from a folder or hub id in float32 (optimizers need its precision).

    Raises:
        CheckpointError: nothing loadable is there.
    """
    if isinstance(model, PreTrainedModel):
        return model
    options: dict[str, Any] = {"dtype": torch.float32, **(args.model_init_kwargs or {})}
    try:
        with _progress_bars(shown=not args.disable_tqdm):
            return cast(PreTrainedModel, AutoModelForCausalLM.from_pretrained(str(model), **options))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"model {str(model)!r} cannot be loaded as a causal LM: {error}") from error


@contextmanager
def _progress_bars(*, shown: bool) -> Generator[None, None, None]:
    """The library's own bars, which it switches for the whole process."""
    if shown or not library_logging.is_progress_bar_enabled():
        yield
        return
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        library_logging.enable_progress_bar()


def model_limits(model: PreTrainedModel) -> ModelLimits:
    """Vocabulary by the embedding's real size; context by the config, unbounded where it names none."""
    embeddings = cast(Any, model.get_input_embeddings())
    context_length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return ModelLimits(vocab_size=int(embeddings.weight.shape[0]), context_length=int(context_length or 2**31))
