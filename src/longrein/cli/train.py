"""``longrein train RUN.toml``: held-out judgement, warm start, GRPO, judgement again."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec
from rich.console import Console

from longrein.cli import parts
from longrein.cli.command import Command, add_run_arguments, read_run_file
from longrein.cli.curve import draw_curve
from longrein.cli.evaluate import evaluate_model
from longrein.cli.grpo import train_grpo
from longrein.cli.run_directory import set_aside
from longrein.cli.sft import warm_start
from longrein.config import RunConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.rollout.evaluate import EvalReport, Interval, paired_difference
from longrein.train.folder_weights import folder_weights


def run(arguments: argparse.Namespace) -> int:
    """The whole run. Returns 1 when a demanded improvement is missing."""
    config = parts.checked(read_run_file(arguments), str(arguments.run_file))
    run_dir = Path(config.output_dir)
    moved = set_aside(run_dir)
    if moved:
        print(f"an earlier run stands in {run_dir}; it is now {moved}")
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(config)))
    engine = LocalEngineProcess(parts.engine_config(config))
    engine.start()
    try:
        return _Run(config, engine, Console()).whole()
    finally:
        engine.stop()


class _Run:
    def __init__(self, config: RunConfig, engine: LocalEngineProcess, console: Console) -> None:
        self._config = config
        self._engine = engine
        self._console = console
        self._run_dir = Path(config.output_dir)
        self._held_out = parts.tasks(config, "test")

    def whole(self) -> int:
        started_s = time.monotonic()
        start_model = self._warm_start()
        before = self._judge("warm start" if self._config.sft.steps else "base")
        self._console.print(
            f"{'':>12}  GRPO begins {time.monotonic() - started_s:.0f} s after the start",
            highlight=False,
            soft_wrap=True,
        )
        grpo_started_s = time.monotonic()
        train_grpo(self._config, start_model, self._engine, self._console)
        self._console.print(
            f"{'':>12}  GRPO took {time.monotonic() - grpo_started_s:.0f} s", highlight=False, soft_wrap=True
        )
        after = self._judge("GRPO")
        curve = draw_curve(self._run_dir, before, after)
        self._console.print(f"{'':>12}  run directory {self._run_dir}" + (f", curve {curve.name}" if curve else ""))
        self._console.print(f"{'':>12}  {time.monotonic() - started_s:.0f} s in all", highlight=False, soft_wrap=True)
        return self._verdict(before, after)

    def _warm_start(self) -> str:
        """The folder that GRPO starts from; the engine serves it on return, as version 0."""
        if not self._config.sft.steps:
            return self._config.model.path
        self._judge("base")
        folder = warm_start(self._config, self._console)
        self._engine.weights.update(folder_weights(folder), 0)
        return str(folder)

    def _judge(self, label: str) -> EvalReport | None:
        if not self._held_out:
            return None
        return evaluate_model(self._config, self._engine.spec, self._held_out, label, self._console)

    def _verdict(self, before: EvalReport | None, after: EvalReport | None) -> int:
        if before is None or after is None:
            return 0
        difference: Interval = paired_difference(after, before)
        self._console.print(f"{'gain':>12}: {difference} (paired, 95 % CI)", highlight=False, soft_wrap=True)
        if self._config.eval.require_improvement and not difference.above_zero:
            self._console.print("the paired interval does not lie above 0: no improvement is shown")
            return 1
        return 0


COMMAND = Command(name="train", help="train a model inside its agent", configure=add_run_arguments, run=run)
