"""The GRPO part of a run: worker, trainer, and where the numbers go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from msgspec.structs import asdict
from rich.console import Console
from transformers import TrainerCallback

from longrein.cli import parts
from longrein.cli.engine import RunEngine
from longrein.cli.phases import GrpoPhase, launched_count
from longrein.cli.run_directory import MODEL
from longrein.config import RunConfig
from longrein.engines.base import WeightReceiver
from longrein.metrics import JsonlSink, TableSink, rewind
from longrein.rollout.worker import HarnessRolloutWorker
from longrein.train.checkpoint import last_checkpoint
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.log_callback import MetricsCallback
from longrein.train.merged_folder import save_merged
from longrein.train.ranks import Ranks
from longrein.train.trainer import AsyncGRPOTrainer
from longrein.train.whole_folder import written_whole
from longrein.train.worker_protocol import RolloutWorker

CHECKPOINTS = "checkpoints"


def train_grpo(config: RunConfig, start_model: str, engine: RunEngine, console: Console, ranks: Ranks) -> Path:
    """Train with all ranks from the run's last checkpoint, or ``start_model``, while the engine serves every version.

    Returns the final model's folder, in which adapters are merged.
    """
    metrics_file = Path(config.output_dir) / "metrics.jsonl"
    checkpoint = last_checkpoint(Path(config.output_dir) / CHECKPOINTS)
    step = checkpoint.note.step if checkpoint else 0
    rewind(metrics_file, step)
    sinks = (JsonlSink(metrics_file), TableSink(console, config.train.max_steps, step))
    worker = _worker(config, engine)
    # Without a checkpoint, what the first weights sampled before the process was killed; in a new run nothing.
    worker.resume((), 0)
    folder = Path(config.output_dir) / MODEL
    phase = ranks.from_first(
        GrpoPhase(start_model=start_model, checkpoint=str(checkpoint.folder) if checkpoint else "", folder=str(folder))
    )
    trainer = grpo_trainer(config, start_model, worker, engine.weights, [MetricsCallback(sinks)])
    try:
        trainer.train(resume_from_checkpoint=phase.checkpoint or None)
    finally:
        worker.stop()
        for sink in sinks:
            sink.close()
    with written_whole(folder) as part:
        save_merged(trainer, part)
    return folder


def grpo_trainer(
    config: RunConfig,
    start_model: str,
    worker: RolloutWorker,
    receiver: WeightReceiver,
    callbacks: Sequence[TrainerCallback],
) -> AsyncGRPOTrainer:
    """The run's trainer, on every rank."""
    torch.set_num_threads(config.compute.trainer_threads)
    return AsyncGRPOTrainer(
        model=start_model,
        args=_arguments(config),
        train_dataset=parts.tasks(config, "train"),
        processing_class=parts.training_tokenizer(config),
        rollout_worker=worker,
        weight_receiver=receiver,
        callbacks=callbacks,
        peft_config=parts.peft_config(config),
    )


def _worker(config: RunConfig, engine: RunEngine) -> HarnessRolloutWorker:
    rollout, model = config.rollout, config.model
    return HarnessRolloutWorker(
        harness_session_factory=parts.session_factory(config),
        model_name=model.path,
        dataset=parts.tasks(config, "train"),
        engine=engine.spec,
        output_dir=config.output_dir,
        rollout_reward_fn=parts.reward_fn(config),
        advantage=config.train.advantage,
        num_generations=rollout.num_generations,
        max_inflight_tasks=rollout.max_inflight,
        max_staleness=rollout.max_staleness,
        groups_per_step=config.train.groups_per_step,
        max_tokens=rollout.max_tokens,
        max_calls=rollout.max_calls,
        max_sampled_tokens=rollout.max_sampled_tokens,
        max_session_s=rollout.max_session_s,
        max_context_refusals=rollout.max_context_refusals,
        engine_timeout_s=rollout.engine_timeout_s,
        context_length=model.context_length,
        temperature=rollout.temperature,
        chat_template=parts.chat_template(config),
        tool_parser=model.tool_parser,
        renderer=model.renderer,
        curriculum=parts.curriculum(config),
        seed=config.seed,
    )


def _arguments(config: RunConfig) -> AsyncGRPOConfig:
    train = config.train
    return AsyncGRPOConfig(
        output_dir=str(Path(config.output_dir) / CHECKPOINTS),
        max_steps=train.max_steps,
        per_device_train_batch_size=train.groups_per_step * config.rollout.num_generations // launched_count(),
        num_generations=config.rollout.num_generations,
        max_completion_length=config.rollout.max_tokens,
        temperature=config.rollout.temperature,
        learning_rate=train.learning_rate,
        lr_scheduler_type="constant_with_warmup" if train.lr_scheduler == "constant" else train.lr_scheduler,
        warmup_steps=train.warmup_steps,
        max_grad_norm=train.max_grad_norm,
        weight_decay=train.weight_decay,
        adam_beta2=train.adam_beta2,
        **asdict(parts.loss_choices(config)),
        role_weights={**train.roles.weights()},
        micro_batch_tokens=train.micro_batch_tokens,
        shared_prefix=train.shared_prefix,
        gradient_checkpointing=train.gradient_checkpointing,
        save_strategy="steps" if train.save_steps else "no",
        save_steps=train.save_steps or 500,
        save_total_limit=train.save_total_limit,
        report_to=list(train.report_to) or "none",
        seed=config.seed,
        use_cpu=True,
        logging_steps=1,
    )
