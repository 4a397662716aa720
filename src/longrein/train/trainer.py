"""``AsyncGRPOTrainer``: GRPO on rollouts that keep coming while it trains."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Sequence, Sized
from typing import Any, cast

from torch import nn
from transformers import TrainerCallback

from longrein.engines.base import WeightReceiver
from longrein.errors import ConfigError
from longrein.train.agreement import check_agreement
from longrein.train.collect import CollectRule, StepCollector
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.objective import ClippedGrpo
from longrein.train.show import CompletionPrinter
from longrein.train.step_trainer import ModelSource, StepLoader, StepLoss, StepTrainer
from longrein.train.weights import named_weights
from longrein.train.worker_protocol import RolloutWorker
from longrein.types import Role


class AsyncGRPOTrainer(StepTrainer):
    """Takes finished groups, makes one clipped-GRPO step of them, and publishes the new weights.

    The policy version is the number of steps taken. After each step the engine gets the weights as version + 1 and
    the worker is told; meanwhile it goes on making rollouts.

    Args:
        model: folder, hub id or loaded model.
        args: the configuration.
        train_dataset: only its length is used, to turn ``num_train_epochs`` into steps; the worker has the tasks.
        processing_class: the tokenizer, saved with the model.
        rollout_worker: started when training begins and stopped when it ends, however it ends. Settings that it
            shares with ``args`` must be the same.
        weight_receiver: the engine's end that takes new weights.
        callbacks: as in the library.

    Raises:
        ConfigError: no worker, a worker that was told otherwise than the configuration, nowhere to send weights, or
            no way to tell how many steps to take.
        CheckpointError: the model cannot be loaded.
    """

    def __init__(
        self,
        *,
        model: ModelSource,
        args: AsyncGRPOConfig,
        rollout_worker: RolloutWorker | None = None,
        weight_receiver: WeightReceiver | None = None,
        train_dataset: Any = None,
        processing_class: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        self.rollout_worker = _require_worker(rollout_worker)
        check_agreement(self.rollout_worker, args)
        receiver = _require_receiver(weight_receiver, args)
        rule = CollectRule(
            groups_per_step=args.groups_per_step,
            max_staleness=args.max_staleness,
            fork_threshold_tokens=args.fork_threshold_tokens,
            roles_trained=cast("frozenset[Role]", frozenset(args.roles_trained)),
        )
        collector = StepCollector(self.rollout_worker, rule, lambda: self.state.global_step)
        super().__init__(
            model=model,
            args=args,
            step_loss=StepLoss(
                objective=ClippedGrpo(epsilon=args.epsilon, epsilon_high=args.epsilon_high),
                temperature=args.temperature,
                aggregation=cast(Any, args.loss_aggregation),
            ),
            loader=StepLoader(collector, _steps_per_epoch(train_dataset, args)),
            processing_class=processing_class,
            callbacks=callbacks,
            train_dataset=train_dataset,
        )
        self.add_callback(_Publisher(self, receiver))
        if args.log_completions:
            self.add_callback(
                CompletionPrinter(lambda: self.step_rows, self.processing_class, args.num_completions_to_print)
            )

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train to the end, then stop the worker; also when interrupted or failing.

        Raises:
            WorkerError: the rollout worker died.
            EngineError: the engine refused the weights.
            BatchError: a row cannot be trained on.
            DivergedError: loss or gradients were not finite three times in a row.
        """
        try:
            return super().train(*args, **kwargs)
        finally:
            self.rollout_worker.stop()


class _Publisher(TrainerCallback):
    """Starts the worker, and after each step sends the weights where completions are sampled."""

    def __init__(self, trainer: AsyncGRPOTrainer, receiver: WeightReceiver) -> None:
        self._trainer = trainer
        self._receiver = receiver

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            # A resumed run: the engine was started from the first weights.
            self._publish(state.global_step)
        self._trainer.rollout_worker.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        started_s = time.perf_counter()
        self._publish(state.global_step)
        self._trainer.step_metrics.add({"publish_s": time.perf_counter() - started_s})

    def _publish(self, version: int) -> None:
        self._receiver.update(named_weights(cast(nn.Module, self._trainer.model)), version)
        self._trainer.rollout_worker.update_model_version(version)


def _require_worker(worker: RolloutWorker | None) -> RolloutWorker:
    if worker is None:
        raise ConfigError("AsyncGRPOTrainer: give rollout_worker, for instance a HarnessRolloutWorker")
    return worker


def _require_receiver(receiver: WeightReceiver | None, args: AsyncGRPOConfig) -> WeightReceiver:
    if args.vllm_server_base_url:
        raise ConfigError(
            f"AsyncGRPOTrainer: vllm_server_base_url={args.vllm_server_base_url!r} arrives with the vLLM engine; "
            "until then use the embedded engine and pass its weight_receiver"
        )
    if receiver is None:
        raise ConfigError("AsyncGRPOTrainer: give weight_receiver, the embedded engine's end that takes new weights")
    return receiver


def _steps_per_epoch(train_dataset: Any, args: AsyncGRPOConfig) -> int:
    if isinstance(train_dataset, Sized) and len(train_dataset):
        return -(-len(train_dataset) // args.groups_per_step)
    if args.max_steps > 0:
        return args.max_steps
    raise ConfigError("AsyncGRPOTrainer: without a train_dataset that has a length, max_steps must be above 0")
