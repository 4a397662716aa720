"""``longrein sft RUN.toml``: oracle rollouts through the gateway, then cross-entropy on their rows."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import torch
from rich.console import Console

from longrein.cli import parts
from longrein.cli.command import Command, add_run_arguments, read_run_file
from longrein.cli.single_rollouts import SingleRollouts
from longrein.config import Problem, RunConfig, config_error
from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.metrics import LossSink
from longrein.rollout.demonstrate import OracleVoice, demonstrate
from longrein.rollout.runtime import open_gateway
from longrein.rows import rows_from_rollout
from longrein.train.log_callback import MetricsCallback
from longrein.train.sft import SftConfig, train_sft
from longrein.types import Rollout, Row


def run(arguments: argparse.Namespace) -> int:
    """Warm-start the run's model and save it under ``<output_dir>/sft``."""
    config = parts.checked(read_run_file(arguments), str(arguments.run_file))
    if not config.sft.steps:
        problem = Problem(key="sft.steps", value=0, fix="set it to at least 1")
        raise config_error(str(arguments.run_file), [problem])
    folder = warm_start(config, Console())
    Console().print(f"saved {folder}")
    return 0


def warm_start(config: RunConfig, console: Console) -> Path:
    """Collect demonstrations, train on them, and return the saved model's folder."""
    rollouts = asyncio.run(_demonstrations(config))
    rows = [row for rollout in rollouts for row in _rows(rollout)]
    trained_tokens = sum(int(row.loss_mask.sum()) for row in rows)
    console.print(
        f"{'sft':>12}: {len(rollouts)} oracle rollouts, {trained_tokens} trained tokens, {config.sft.steps} steps",
        highlight=False,
        soft_wrap=True,
    )
    folder = Path(config.output_dir) / "sft"
    # The engine has nothing to do meanwhile: its cores are free.
    torch.set_num_threads(config.compute.trainer_threads + config.compute.engine_threads)
    train_sft(
        model=config.model.path,
        rows=rows,
        config=SftConfig(
            output_dir=str(folder),
            max_steps=config.sft.steps,
            per_device_train_batch_size=config.sft.batch_size,
            learning_rate=config.sft.learning_rate,
            lr_scheduler_type="constant",
            micro_batch_tokens=config.train.micro_batch_tokens,
            max_grad_norm=config.train.max_grad_norm,
            seed=config.seed,
            use_cpu=True,
        ),
        processing_class=parts.training_tokenizer(config),
        callbacks=[MetricsCallback([LossSink(console, "sft", config.sft.steps)])],
    )
    return folder


async def _demonstrations(config: RunConfig) -> list[Rollout]:
    chosen = parts.tasks(config, "train")[: config.sft.steps * config.sft.batch_size]
    section = config.sft
    voice = OracleVoice(tool=section.tool, argument=section.argument, closing=section.closing)
    renderer = parts.renderer_spec(config).load()
    engine = ScriptedEngine(
        TurnList(renderer), vocab_size=renderer.vocab_size, context_length=config.model.context_length
    )
    gateway, factory = parts.gateway_settings(config), parts.session_factory(config)
    async with open_gateway(engine, renderer, gateway, factory) as runtime:
        rollouts = await demonstrate(runtime, engine, chosen, voice, config.eval.max_inflight)
    on_disk = SingleRollouts(Path(config.output_dir) / "sft-demonstrations", chosen)
    for rollout in rollouts:
        on_disk.append(rollout)
    return rollouts


def _rows(rollout: Rollout) -> tuple[Row, ...]:
    return rows_from_rollout(rollout, advantage=1.0).rows


COMMAND = Command(name="sft", help="warm-start a model on oracle rollouts", configure=add_run_arguments, run=run)
