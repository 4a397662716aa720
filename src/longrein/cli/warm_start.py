"""The warm start of a run: oracle rollouts through the gateway, then cross-entropy on their rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from transformers import TrainerCallback

from longrein.cli import parts
from longrein.cli.phases import SftPhase, launched_count
from longrein.cli.single_rollouts import SingleRollouts
from longrein.config import RunConfig
from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.metrics import LossSink
from longrein.rollout.demonstrate import OracleVoice, demonstrate
from longrein.rollout.runtime import open_gateway
from longrein.rows import rows_from_rollout
from longrein.train.log_callback import MetricsCallback
from longrein.train.ranks import Ranks
from longrein.train.sft import SftConfig, SftResult, train_sft
from longrein.train.whole_folder import written_whole
from longrein.types import Rollout, Row

WARM = "sft"
DEMONSTRATIONS = "sft-demonstrations"


def warm_start(config: RunConfig, console: Console, ranks: Ranks) -> Path:
    """Collect demonstrations, train on them with all ranks, and return the saved model's folder."""
    rollouts = asyncio.run(_demonstrations(config))
    rows = [row for rollout in rollouts for row in _rows(rollout, config)]
    trained_tokens = sum(int(row.loss_mask.sum()) for row in rows)
    console.print(
        f"{'sft':>12}: {len(rollouts)} oracle rollouts, {trained_tokens} trained tokens, {config.sft.steps} steps",
        highlight=False,
        soft_wrap=True,
    )
    folder = Path(config.output_dir) / WARM
    with written_whole(folder) as part:
        phase = ranks.from_first(SftPhase(rows=tuple(rows), folder=str(part)))
        train_rows(config, phase.rows, part, [MetricsCallback([LossSink(console, "sft", config.sft.steps)])])
    return folder


def train_rows(config: RunConfig, rows: Sequence[Row], folder: Path, callbacks: Sequence[TrainerCallback]) -> SftResult:
    """Train the run's model on demonstrations and save it in ``folder``; every rank does."""
    # The engine has nothing to do meanwhile: its cores are free.
    torch.set_num_threads(config.compute.trainer_threads + config.compute.engine_threads)
    arguments = SftConfig(
        output_dir=str(folder),
        max_steps=config.sft.steps,
        per_device_train_batch_size=config.sft.batch_size // launched_count(),
        learning_rate=config.sft.learning_rate,
        lr_scheduler_type="constant",
        save_strategy="no",
        micro_batch_tokens=config.train.micro_batch_tokens,
        shared_prefix=config.train.shared_prefix,
        max_grad_norm=config.train.max_grad_norm,
        seed=config.seed,
        use_cpu=True,
    )
    return train_sft(config.model.path, rows, arguments, parts.training_tokenizer(config), callbacks)


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
    on_disk = SingleRollouts(Path(config.output_dir) / DEMONSTRATIONS, chosen)
    for rollout in rollouts:
        on_disk.append(rollout)
    return rollouts


def _rows(rollout: Rollout, config: RunConfig) -> tuple[Row, ...]:
    return rows_from_rollout(rollout, advantage=1.0, role_weights=config.train.roles.weights()).rows
