"""``AsyncGRPOTrainer``: GRPO on rollouts that keep coming while it trains."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence, Sized
from contextlib import ExitStack
from typing import Any, cast

import msgspec
from torch import nn
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_utils import TrainOutput

from longrein.engines.base import WeightReceiver
from longrein.errors import ConfigError
from longrein.train.adapters import is_adapted, with_adapters
from longrein.train.agreement import check_agreement, check_vocabulary
from longrein.train.checkpoint import Checkpoint, Identity
from longrein.train.choose import policy_objective
from longrein.train.collect import CollectRule, StepCollector
from longrein.train.elsewhere import WorkerElsewhere
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.normalise import AsGiven, BatchNormalised
from longrein.train.publication import publication_for
from longrein.train.publish import Publisher
from longrein.train.reference import AdaptersOffPenalty, KlPenalty, NoPenalty, Penalty
from longrein.train.sharded import WeightsElsewhere, over_ranks
from longrein.train.show import CompletionPrinter
from longrein.train.step_trainer import ModelSource, StepLoader, StepLoss, StepTrainer, load_model
from longrein.train.vllm.choose import vllm_receiver
from longrein.train.vllm.from_arguments import sync_settings
from longrein.train.vllm.tied import tied_names
from longrein.train.worker_protocol import RolloutWorker
from longrein.types import Role

MADE_WITH = ("num_generations", "temperature", "advantage")
"""Arguments that the groups on disk were made with, and that no resumed run may change."""


class AsyncGRPOTrainer(StepTrainer):
    """Takes finished groups, makes one policy-gradient step of them, and publishes the new weights.

    The policy version is the number of steps taken. After each step the engine gets the weights as version + 1 and
    the worker is told; meanwhile it goes on making rollouts.

    Args:
        model: folder, hub id, loaded model, or a ``peft.PeftModel`` of one.
        args: the configuration.
        train_dataset: only its length is used, to turn ``num_train_epochs`` into steps; the worker has the tasks.
        processing_class: the tokenizer, saved with the model.
        rollout_worker: started when training begins and stopped when it ends, however it ends. Settings that it
            shares with ``args`` must be the same. Of several ranks only rank 0 needs one; others are not looked at.
        weight_receiver: the engine's end that takes new weights; again rank 0's. One that takes adapters gets nothing
            else of an adapted model, after the start. With ``vllm_server_base_url`` it is made here.
        callbacks: as in the library.
        peft_config: a ``peft.LoraConfig``: new adapters are put on the model, and they alone train.

    Raises:
        ConfigError: no worker, a worker that was told otherwise than the configuration, nowhere to send weights, no
            way to tell how many steps to take, or adapters that cannot be trained and published.
        CheckpointError: the model cannot be loaded.
        EngineError: a vLLM server does not answer, or lacks what it needs to take weights.
    """

    def __init__(  # noqa: PLR0913 - TRL's arguments
        self,
        *,
        model: ModelSource,
        args: AsyncGRPOConfig,
        rollout_worker: RolloutWorker | None = None,
        weight_receiver: WeightReceiver | None = None,
        train_dataset: Any = None,
        processing_class: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
        peft_config: Any = None,
    ) -> None:
        is_first = args.process_index == 0
        self.rollout_worker = _require_worker(rollout_worker) if is_first else WorkerElsewhere()
        check_agreement(self.rollout_worker, args)
        if is_first:
            _check_receiver(weight_receiver, args)
        rule = CollectRule(
            groups_per_step=args.groups_per_step,
            max_staleness=args.max_staleness,
            fork_threshold_tokens=args.fork_threshold_tokens,
            role_weights=cast("dict[Role, float]", args.role_weights),
            scale=BatchNormalised() if args.advantage == "batch_normalised" else AsGiven(),
            equal_groups=cast(Any, args.equal_groups),
        )
        self._collector = StepCollector(self.rollout_worker, rule, lambda: self.state.global_step)
        loaded = with_adapters(load_model(model, args), peft_config, args.seed)
        self._opened = ExitStack()
        receiver = self._receiver(weight_receiver, args, loaded) if is_first else WeightsElsewhere()
        super().__init__(
            model=loaded,
            args=args,
            step_loss=StepLoss(
                objective=policy_objective(args.loss_choices, _penalty(loaded, args)),
                temperature=args.temperature,
                aggregation=cast(Any, args.loss_aggregation),
                constant_tokens=args.max_completion_length,
            ),
            loader=StepLoader(self._collector, _steps_per_epoch(train_dataset, args)),
            processing_class=processing_class,
            callbacks=callbacks,
            train_dataset=train_dataset,
        )
        check_vocabulary(self.rollout_worker, self.processing_class)
        publication = publication_for(over_ranks(receiver, self.ranks), lambda: cast(nn.Module, self.model))
        self._publisher = Publisher(publication, self.rollout_worker, self.step_metrics, self.ranks)
        self.add_callback(self._publisher)
        if args.log_completions and is_first:
            self.add_callback(
                CompletionPrinter(lambda: self.step_rows, self.processing_class, args.num_completions_to_print)
            )

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train to the end, then stop the worker; also when interrupted or failing.

        Args:
            resume_from_checkpoint: ``True`` for the last checkpoint in ``output_dir``, or the folder of one.
            args, kwargs: as in the library.

        Raises:
            CheckpointError: no checkpoint, one that is not whole, or one of another model or run.
            WorkerError: the rollout worker died.
            EngineError: the engine refused the weights.
            BatchError: a row cannot be trained on.
            DivergedError: loss or gradients were not finite three times in a row.
        """
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.rollout_worker.stop()
            self._opened.close()

    def identity(self) -> Identity:
        """With what the groups on disk were made by."""
        identity = super().identity()
        settings = {name: getattr(self.args, name) for name in MADE_WITH}
        return msgspec.structs.replace(identity, settings={**identity.settings, **settings})

    def taken(self) -> tuple[str, ...]:
        """Ids of the groups that the steps so far have used up."""
        return tuple(self._collector.taken)

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Neither trainer nor worker takes a group twice."""
        self._collector.taken = [*checkpoint.note.taken]
        self.rollout_worker.resume(checkpoint.note.taken, checkpoint.note.step)

    def _receiver(self, given: WeightReceiver | None, args: AsyncGRPOConfig, model: nn.Module) -> WeightReceiver:
        if given is not None:
            return given
        receiver = vllm_receiver(sync_settings(args), tied_names(model))
        self._opened.callback(receiver.close)
        return receiver

    def _load_finished(self, checkpoint: Checkpoint) -> TrainOutput:
        done = super()._load_finished(checkpoint)
        self._publisher.begin(done.global_step)
        return done


def _penalty(model: nn.Module, args: AsyncGRPOConfig) -> Penalty:
    if not args.beta:
        return NoPenalty()
    penalty = AdaptersOffPenalty if is_adapted(model) else KlPenalty
    return penalty(cast(PreTrainedModel, model), weight=args.beta, temperature=args.temperature)


def _require_worker(worker: RolloutWorker | None) -> RolloutWorker:
    if worker is None:
        raise ConfigError("AsyncGRPOTrainer: give rollout_worker, for instance a HarnessRolloutWorker")
    return worker


def _check_receiver(receiver: WeightReceiver | None, args: AsyncGRPOConfig) -> None:
    """Before a model is loaded."""
    if receiver is not None and args.vllm_server_base_url:
        raise ConfigError("AsyncGRPOTrainer: give weight_receiver or vllm_server_base_url, not both")
    if args.vllm_server_base_url:
        sync_settings(args)
    elif receiver is None:
        raise ConfigError(
            "AsyncGRPOTrainer: give weight_receiver, the embedded engine's end that takes new weights, or "
            "vllm_server_base_url"
        )


def _steps_per_epoch(train_dataset: Any, args: AsyncGRPOConfig) -> int:
    if isinstance(train_dataset, Sized) and len(train_dataset):
        return -(-len(train_dataset) // args.groups_per_step)
    if args.max_steps > 0:
        return args.max_steps
    raise ConfigError("AsyncGRPOTrainer: without a train_dataset that has a length, max_steps must be above 0")
