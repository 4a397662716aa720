"""``transformers.Trainer`` whose batch is one whole optimizer step, made of rows.

Callbacks, trackers, schedulers, clipping and checkpoints stay the library's. What is ours: where a step comes from,
its one denominator, its micro-batches, and what is measured of it.
"""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
)
from transformers.trainer_callback import ProgressCallback

from longrein.train.batch import MicroBatch, share_step
from longrein.train.deal import Dealer, Dealt
from longrein.train.fsdp import keep_scores_exact, save_in_shards, sharding_on_cpu
from longrein.train.gradient import StepTotals, WholeStep, add_gradient
from longrein.train.guard import NonFiniteGuard
from longrein.train.load_model import ModelSource, load_model, load_tokenizer
from longrein.train.loss_choices import Aggregation
from longrein.train.objective import Objective
from longrein.train.oversized import OversizedRows
from longrein.train.passes import Pass
from longrein.train.progress_bars import progress_bars
from longrein.train.rank_steps import RankSteps
from longrein.train.ranks import Ranks, lost_rank
from longrein.train.resumable import ResumableTrainer
from longrein.train.router_loss import router_loss_for
from longrein.train.row_checks import ModelLimits, check_rows
from longrein.train.saved_rows import save_rows
from longrein.train.score import scorer_for
from longrein.train.sharded import gathered
from longrein.train.step_config import StepConfig
from longrein.train.step_metrics import StepMetrics
from longrein.train.tree_cut import tree_cost
from longrein.train.tree_fit import packing_for
from longrein.types import Row

LOSS = "loss"
SKIPPED = "_skipped"
"""Folder in ``output_dir`` of the rows of refused steps. The library uploads nothing to the hub that begins with _."""


class StepRows(msgspec.Struct, frozen=True, kw_only=True):
    """What one optimizer step trains on."""

    rows: tuple[Row, ...]
    metrics: dict[str, float]
    """Logged with the step, by the rules of :mod:`longrein.train.step_metrics`."""
    policy_version: int = 0
    """Of the weights that the step starts from; staleness is measured against it."""


class StepLoss(msgspec.Struct, frozen=True, kw_only=True):
    """How a step becomes a gradient."""

    objective: Objective
    temperature: float
    aggregation: Aggregation
    constant_tokens: int = 1
    """Divides each rollout's sum where ``aggregation`` is ``constant``."""


class StepLoader:
    """What the library sees as its dataloader: each item is a whole step."""

    def __init__(self, steps: Iterable[StepRows], steps_per_epoch: int) -> None:
        self._steps = steps
        self._steps_per_epoch = steps_per_epoch

    def over(self, ranks: Ranks) -> StepLoader:
        """What rank 0 loads, on every rank; this one is only asked on rank 0."""
        return StepLoader(RankSteps(lambda: self._steps, ranks), ranks.from_first(self._steps_per_epoch))

    def __len__(self) -> int:
        return self._steps_per_epoch

    def __iter__(self) -> Iterator[dict[str, StepRows]]:
        return ({"step": step} for step in self._steps)


class StepTrainer(ResumableTrainer):
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
        CheckpointError: model or tokenizer cannot be loaded, or not whole.
        ConfigError: no tokenizer, and a model that does not say where its own is.
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
        super().__init__(
            model=loaded,
            args=library_args,
            processing_class=processing_class or load_tokenizer(loaded),
            callbacks=list(callbacks),
            train_dataset=train_dataset,
        )
        if not any(isinstance(callback, PrinterCallback | ProgressCallback) for callback in callbacks):
            self.remove_callback(PrinterCallback)
        self._step_loss = step_loss
        self._loader = loader.over(self.ranks)
        self._dealer = _dealer(loaded, args, self.ranks)
        self._limits = model_limits(loaded)
        self._oversized = OversizedRows(loaded, args.micro_batch_tokens)
        self._scorer = scorer_for(loaded, step_loss.temperature)
        self._router_loss = router_loss_for(loaded)
        self.step_metrics = StepMetrics()
        """Numbers added here are logged with the step."""
        self.step_rows: tuple[Row, ...] = ()
        """Rows of the step in progress."""
        self._guard = NonFiniteGuard(self.step_metrics, self._keep_step)
        self.add_callback(self._guard)

    def create_accelerator_and_postprocess(self) -> None:
        """The library's, and sharding on CPUs too."""
        with sharding_on_cpu(self.args):
            super().create_accelerator_and_postprocess()
        if self.is_fsdp_enabled:
            save_in_shards(self.accelerator.state.fsdp_plugin)
            keep_scores_exact(self.accelerator.state.fsdp_plugin)

    def get_train_dataloader(self) -> Any:
        """The loader given at construction."""
        return self._loader

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Leave the gradient of one whole step in ``model``; returns its loss, 0 where it has none.

        Raises:
            BatchError: a row that cannot be trained on, before anything is computed.
        """
        step: StepRows = inputs["step"]
        started_s = time.perf_counter()
        model.train()
        self.step_rows = step.rows
        self.step_metrics.add(step.metrics)
        parts = self._plan(step.rows)
        own = parts[self.ranks.index].batches
        totals = self._add_gradient(model, own, step.policy_version) if any(part.batches for part in parts) else None
        self._measure(step, totals, time.perf_counter() - started_s)
        if totals is None or self._guard.refuses_loss(model, totals.loss):
            return torch.zeros((), device=self.args.device)
        self.step_metrics.add({LOSS: totals.loss.item()})
        return totals.loss.to(torch.float32)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write a folder that ``from_pretrained`` reads: weights, config, tokenizer and chat template.

        Every rank calls it; rank 0 writes, and none returns before the folder is whole.
        """
        with progress_bars(shown=not self.args.disable_tqdm):
            if self.is_fsdp_enabled:
                self._save_whole(output_dir or str(self.args.output_dir), push=not _internal_call)
            else:
                super().save_model(output_dir, _internal_call)
        self.ranks.gathered(None)

    def _save_whole(self, output_dir: str, *, push: bool) -> None:
        """Of sharded weights the library would write nothing, or shards, as its plugin is set."""
        weights = gathered(cast(nn.Module, self.model).state_dict(), kept=self.args.should_save)
        if self.args.should_save:
            self._save(output_dir, state_dict=weights)
        if self.args.push_to_hub and push:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what was measured since the last log line. Where no step had a loss, there is none."""
        # A resumed epoch begins again at its first step, as far as the library knows.
        self.state.epoch = self.state.global_step / len(self._loader)
        measured = self.step_metrics.take()
        if LOSS not in logs:
            measured.pop(LOSS, None)
        # The library's own mean counts steps without a loss as 0.
        others = {name: value for name, value in logs.items() if name != LOSS}
        super().log({**others, **measured}, start_time)

    def _plan(self, rows: Sequence[Row]) -> tuple[Dealt, ...]:
        """The part of each rank."""
        check_rows(rows, self._limits)
        self._oversized.check(rows)
        shared = share_step(rows, self._step_loss.aggregation, self._step_loss.constant_tokens)
        taught = [item for item in shared if self._step_loss.objective.teaches(item.row)]
        return self._dealer.deal(taught)

    def _keep_step(self, step: int) -> Path:
        path = Path(str(self.args.output_dir)) / SKIPPED / f"step-{step:06d}.npz"
        return save_rows(path, self.step_rows) if self.ranks.index == 0 else path

    def _add_gradient(self, model: nn.Module, batches: Sequence[MicroBatch], policy_version: int) -> StepTotals:
        def around(turn: Pass) -> AbstractContextManager[object]:
            stack = ExitStack()
            stack.enter_context(self.accelerator.autocast())
            stack.enter_context(self._oversized.around(turn.batch))
            if not turn.is_last:
                stack.enter_context(self.accelerator.no_sync(model))
            return stack

        with lost_rank():
            return add_gradient(
                model,
                batches,
                scorer=self._scorer,
                objective=self._step_loss.objective,
                backward=self.accelerator.backward,
                around=around,
                step=WholeStep(ranks=self.ranks, policy_version=policy_version, router_loss=self._router_loss),
            )

    def _measure(self, step: StepRows, totals: StepTotals | None, seconds: float) -> None:
        trained = sum(int(row.loss_mask.sum()) for row in step.rows)
        self.step_metrics.add(
            {"trained_tokens": trained, "train_s": seconds, "count/empty_steps": float(totals is None)}
        )
        if totals is not None:
            self.step_metrics.add(
                {
                    **totals.measures,
                    "tokens_per_s": totals.fed_tokens / seconds,
                    "fed_tokens": totals.fed_tokens,
                    "tree_saving": totals.row_tokens / totals.fed_tokens,
                }
            )


def _dealer(model: PreTrainedModel, args: StepConfig, ranks: Ranks) -> Dealer:
    packing = packing_for(model, args.micro_batch_tokens, shared_prefix=args.shared_prefix)
    cost = tree_cost(int(model.config.get_text_config().hidden_size), args.micro_batch_tokens)
    return Dealer(packing, cost, ranks.count)


def model_limits(model: PreTrainedModel) -> ModelLimits:
    """Vocabulary by the embedding's real size; context by the config, unbounded where it names none."""
    embeddings = cast(Any, model.get_input_embeddings())
    context_length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return ModelLimits(vocab_size=int(embeddings.weight.shape[0]), context_length=int(context_length or 2**31))
