"""``longrein eval RUN.toml``: mean reward and pass@k on held-out tasks, with an interval."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from longrein.cli import parts
from longrein.cli.command import Command, add_run_arguments, read_run_file
from longrein.cli.single_rollouts import SingleRollouts
from longrein.config import RunConfig
from longrein.engines.base import EngineSpec
from longrein.engines.local.process import LocalEngineProcess
from longrein.rollout.evaluate import EvalReport, evaluate
from longrein.rollout.runtime import open_runtime
from longrein.types import Rollout, Task


def run(arguments: argparse.Namespace) -> int:
    """Evaluate the run's model on its held-out tasks."""
    config = parts.checked(read_run_file(arguments), str(arguments.run_file))
    console = Console()
    engine = LocalEngineProcess(parts.engine_config(config))
    engine.start()
    try:
        held_out = parts.tasks(config, "test")
        evaluate_model(config, engine.spec, held_out, "eval", console)
    finally:
        engine.stop()
    return 0


def evaluate_model(
    config: RunConfig, engine: EngineSpec, held_out: Sequence[Task], label: str, console: Console
) -> EvalReport:
    """Evaluate whatever the engine serves now, with a progress bar; print the result.

    ``eval-<label>.json`` in the run directory keeps the report, ``eval-<label>/`` the rollouts behind it.
    """
    name = label.replace(" ", "-").lower()
    folder = Path(config.output_dir) / f"eval-{name}"
    rollouts = SingleRollouts(folder, held_out)

    async def run_all() -> EvalReport:
        async with open_runtime(parts.runtime_settings(config, engine)) as runtime:
            with Progress(console=console, transient=True) as progress:
                bar = progress.add_task(label, total=len(held_out) * config.eval.samples)

                def keep(rollout: Rollout) -> None:
                    rollouts.append(rollout)
                    progress.advance(bar)

                return await evaluate(
                    runtime,
                    held_out,
                    samples=config.eval.samples,
                    pass_at=config.eval.pass_at,
                    max_inflight=config.eval.max_inflight,
                    label=name,
                    on_rollout=keep,
                )

    report = asyncio.run(run_all())
    folder.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    console.print(f"{label:>12}: {describe(report)}", highlight=False, soft_wrap=True)
    return report


def describe(report: EvalReport) -> str:
    """One line: reward with its interval, pass@k, and what did not end well."""
    passes = ", ".join(f"pass@{k} {value:.3f}" for k, value in report.pass_at.items())
    odd = {name: count for name, count in report.statuses.items() if name != "completed"}
    note = f"; {', '.join(f'{count} {name}' for name, count in sorted(odd.items()))}" if odd else ""
    unscorable = f"; {report.unscorable} unscorable" if report.unscorable else ""
    return f"reward {report.reward} (95 % CI); {passes}{note}{unscorable}"


COMMAND = Command(name="eval", help="evaluate a model on held-out tasks", configure=add_run_arguments, run=run)
