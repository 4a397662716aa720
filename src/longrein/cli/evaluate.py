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
from longrein.cli.engine import started_engine
from longrein.cli.phases import launched_count
from longrein.cli.run_directory import write_at_once
from longrein.cli.single_rollouts import SingleRollouts
from longrein.config import RunConfig
from longrein.engines.base import EngineSpec
from longrein.errors import ConfigError
from longrein.rollout.evaluate import EvalReport, evaluate
from longrein.rollout.finished import FinishedFirst
from longrein.rollout.runtime import open_runtime
from longrein.store import read_groups
from longrein.types import Rollout, Task


def run(arguments: argparse.Namespace) -> int:
    """Evaluate the run's model on its held-out tasks."""
    if launched_count() > 1:
        raise ConfigError("longrein eval does not train, and runs in one process; start it without a launcher")
    config = parts.checked(read_run_file(arguments), str(arguments.run_file), trains=False)
    console = Console()
    with started_engine(config) as engine:
        evaluate_model(config, engine.spec, parts.tasks(config, "test"), "eval", console)
    return 0


def judge(config: RunConfig, engine: EngineSpec, held_out: Sequence[Task], label: str, console: Console) -> EvalReport:
    """The same once a run: a report that is there is read, and rollouts that are there are not made again."""
    folder = _folder(config, label)
    report_file = folder.with_suffix(".json")
    report = kept_report(report_file)
    if report is not None:
        return report
    finished = [rollout for group in read_groups(folder) for rollout in group.rollouts]
    return evaluate_model(config, engine, held_out, label, console, finished)


def kept_report(file: Path) -> EvalReport | None:
    """The report that is there. One of rollouts of which none could be scored has means that JSON lacks: ``None``.

    It is then made again of its rollouts, which are kept.
    """
    if not file.exists():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=EvalReport)
    except msgspec.DecodeError:
        return None


def evaluate_model(
    config: RunConfig,
    engine: EngineSpec,
    held_out: Sequence[Task],
    label: str,
    console: Console,
    finished: Sequence[Rollout] = (),
) -> EvalReport:
    """Evaluate whatever the engine serves now, with a progress bar; print the result.

    ``eval-<label>.json`` in the run directory keeps the report, ``eval-<label>/`` the rollouts behind it; those in
    ``finished`` are of the same weights and not made again.
    """
    folder = _folder(config, label)
    rollouts = SingleRollouts(folder, held_out)
    known = {rollout.rollout_id: rollout for rollout in finished}

    async def run_all() -> EvalReport:
        async with open_runtime(parts.judging_settings(config, engine)) as runtime:
            with Progress(console=console, transient=True) as progress:
                bar = progress.add_task(label, total=len(held_out) * config.eval.samples)

                def keep(rollout: Rollout) -> None:
                    if rollout.rollout_id not in known:
                        rollouts.append(rollout)
                    progress.advance(bar)

                driver = FinishedFirst(runtime.driver, known)
                return await evaluate(
                    msgspec.structs.replace(runtime, driver=driver),
                    held_out,
                    samples=config.eval.samples,
                    pass_at=config.eval.pass_at,
                    max_inflight=config.eval.max_inflight,
                    label=_name(label),
                    on_rollout=keep,
                )

    report = asyncio.run(run_all())
    write_at_once(folder.with_suffix(".json"), msgspec.json.format(msgspec.json.encode(report)))
    console.print(f"{label:>12}: {describe(report)}", highlight=False, soft_wrap=True)
    return report


def _name(label: str) -> str:
    return label.replace(" ", "-").lower()


def _folder(config: RunConfig, label: str) -> Path:
    return Path(config.output_dir) / f"eval-{_name(label)}"


def describe(report: EvalReport) -> str:
    """One line: reward with its interval, pass@k, and what did not end well."""
    passes = ", ".join(f"pass@{k} {value:.3f}" for k, value in report.pass_at.items())
    odd = {name: count for name, count in report.statuses.items() if name != "completed"}
    note = f"; {', '.join(f'{count} {name}' for name, count in sorted(odd.items()))}" if odd else ""
    unscorable = f"; {report.unscorable} unscorable" if report.unscorable else ""
    return f"reward {report.reward} (95 % CI); {passes}{note}{unscorable}"


COMMAND = Command(name="eval", help="evaluate a model on held-out tasks", configure=add_run_arguments, run=run)
