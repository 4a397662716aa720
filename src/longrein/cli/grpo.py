"""The GRPO part of a run: worker, trainer, and where the numbers go."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console

from longrein.cli import parts
from longrein.config import RunConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.metrics import JsonlSink, TableSink
from longrein.rollout.worker import HarnessRolloutWorker
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.log_callback import MetricsCallback
from longrein.train.trainer import AsyncGRPOTrainer


def train_grpo(config: RunConfig, start_model: str, engine: LocalEngineProcess, console: Console) -> Path:
    """Train from ``start_model`` while the engine serves every version; returns the final model's folder."""
    torch.set_num_threads(config.compute.trainer_threads)
    sinks = (JsonlSink(Path(config.output_dir) / "metrics.jsonl"), TableSink(console, config.train.max_steps))
    worker = _worker(config, engine)
    trainer = AsyncGRPOTrainer(
        model=start_model,
        args=_arguments(config),
        train_dataset=parts.tasks(config, "train"),
        processing_class=parts.training_tokenizer(config),
        rollout_worker=worker,
        weight_receiver=engine.weights,
        callbacks=[MetricsCallback(sinks)],
    )
    try:
        trainer.train()
    finally:
        worker.stop()
        for sink in sinks:
            sink.close()
    folder = Path(config.output_dir) / "model"
    trainer.save_model(str(folder))
    return folder


def _worker(config: RunConfig, engine: LocalEngineProcess) -> HarnessRolloutWorker:
    rollout, model = config.rollout, config.model
    return HarnessRolloutWorker(
        harness_session_factory=parts.session_factory(config),
        model_name=model.path,
        dataset=parts.tasks(config, "train"),
        engine=engine.spec,
        output_dir=config.output_dir,
        num_generations=rollout.num_generations,
        max_inflight_tasks=rollout.max_inflight,
        max_staleness=rollout.max_staleness,
        groups_per_step=config.train.groups_per_step,
        max_tokens=rollout.max_tokens,
        max_calls=rollout.max_calls,
        context_length=model.context_length,
        temperature=rollout.temperature,
        chat_template=parts.chat_template(config),
        tool_parser=model.tool_parser,
        renderer=model.renderer,
        shuffle_dataset=config.tasks.shuffle,
        seed=config.seed,
    )


def _arguments(config: RunConfig) -> AsyncGRPOConfig:
    train = config.train
    return AsyncGRPOConfig(
        output_dir=str(Path(config.output_dir) / "checkpoints"),
        max_steps=train.max_steps,
        per_device_train_batch_size=train.groups_per_step * config.rollout.num_generations,
        num_generations=config.rollout.num_generations,
        max_completion_length=config.rollout.max_tokens,
        max_staleness=config.rollout.max_staleness,
        temperature=config.rollout.temperature,
        learning_rate=train.learning_rate,
        lr_scheduler_type="constant_with_warmup" if train.lr_scheduler == "constant" else train.lr_scheduler,
        warmup_steps=train.warmup_steps,
        max_grad_norm=train.max_grad_norm,
        weight_decay=train.weight_decay,
        adam_beta2=train.adam_beta2,
        epsilon=train.epsilon,
        epsilon_high=train.epsilon_high,
        loss_aggregation=train.loss_aggregation,
        micro_batch_tokens=train.micro_batch_tokens,
        gradient_checkpointing=train.gradient_checkpointing,
        save_strategy="steps" if train.save_steps else "no",
        save_steps=train.save_steps or 500,
        report_to=list(train.report_to) or "none",
        seed=config.seed,
        use_cpu=True,
        logging_steps=1,
    )
