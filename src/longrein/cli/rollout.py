"""``longrein rollout RUN.toml``: runs a few sessions and shows what happened, the first thing that anyone debugs."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from longrein.cli import parts
from longrein.cli.command import Command, add_run_arguments, read_run_file
from longrein.cli.engine import started_engine
from longrein.cli.rollout_json import as_json
from longrein.cli.show_rollout import RolloutView, WithoutTokens, WithTokens, one_line
from longrein.cli.single_rollouts import SingleRollouts
from longrein.config import RunConfig
from longrein.engines.base import EngineSpec
from longrein.errors import ConfigError
from longrein.rollout.driver import Attempt
from longrein.rollout.runtime import open_runtime
from longrein.rollout.together import together
from longrein.tasks.base import Split
from longrein.types import Rollout, Task


def configure(parser: argparse.ArgumentParser) -> None:
    """Which tasks, how often, and what is shown."""
    add_run_arguments(parser)
    parser.add_argument("-n", type=int, default=1, metavar="COUNT", help="rollouts of each task (default 1)")
    parser.add_argument("--task", action="append", default=[], metavar="ID", help="this task (may be repeated)")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="whose first task, without --task")
    parser.add_argument("--show", action="store_true", help="print the whole trace")
    parser.add_argument("--tokens", action="store_true", help="with --show or --json: each sampled token, its logprob")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write the rollouts there, as a run directory does")
    parser.add_argument("--json", action="store_true", help="print the rollouts as JSON, traces included")


def run(arguments: argparse.Namespace) -> int:
    """Run the rollouts; 1 if any could not be scored."""
    if arguments.n < 1:
        raise ConfigError(f"-n {arguments.n}: at least one rollout")
    config = parts.checked(read_run_file(arguments), str(arguments.run_file), trains=False)
    tasks = _chosen(config, arguments.task, arguments.split)
    keep = SingleRollouts(arguments.output, tasks).append if arguments.output else _forget
    with started_engine(config) as engine:
        rollouts = asyncio.run(_rollouts(config, engine.spec, tasks, arguments.n, keep))
    if arguments.json:
        print(as_json(rollouts, with_tokens=arguments.tokens).decode())
    else:
        _print(config, rollouts, arguments)
    return int(any(rollout.score.reward is None for rollout in rollouts))


def _chosen(config: RunConfig, ids: Sequence[str], split: Split) -> list[Task]:
    """The tasks of these ids, of either split; without ids the first of ``split``.

    Raises:
        ConfigError: an id that the run's tasks do not have, or a split without tasks.
    """
    if not ids:
        found = list(parts.tasks(config, split))[:1]
        if not found:
            raise ConfigError(f"the {split} split has no tasks; take the other one, or name one with --task")
        return found
    both = (*parts.tasks(config, "train", needed=False), *parts.tasks(config, "test", needed=False))
    known = {task.task_id: task for task in both}
    unknown = [task_id for task_id in ids if task_id not in known]
    if unknown:
        some = ", ".join(list(known)[:3])
        raise ConfigError(f"no task is named {', '.join(map(repr, unknown))} among the run's {len(known)}: {some}, ...")
    return [known[task_id] for task_id in dict.fromkeys(ids)]


def _forget(_rollout: Rollout) -> None:
    """Nothing is written."""


async def _rollouts(
    config: RunConfig, engine: EngineSpec, tasks: Sequence[Task], count: int, keep: Callable[[Rollout], None]
) -> list[Rollout]:
    """In the order of the tasks, at most ``rollout.max_inflight`` at once; each is kept as soon as it ends."""
    slots = asyncio.Semaphore(config.rollout.max_inflight)
    async with open_runtime(parts.runtime_settings(config, engine)) as runtime:

        async def one(task: Task, number: int, seed: int) -> Rollout:
            group_id = f"rollout-{number:05d}"
            attempt = Attempt(rollout_id=f"{group_id}-{seed}", group_id=group_id, task=task, seed=seed)
            async with slots:
                rollout = await runtime.driver.run(attempt)
            keep(rollout)
            return rollout

        return await together(one(task, number, seed) for number, task in enumerate(tasks) for seed in range(count))


def _print(config: RunConfig, rollouts: Sequence[Rollout], arguments: argparse.Namespace) -> None:
    console = Console()
    if arguments.show:
        decode = parts.renderer_spec(config).load().decode
        view = RolloutView(WithTokens(decode) if arguments.tokens else WithoutTokens())
        for rollout in rollouts:
            console.print(view.lines(rollout), soft_wrap=True)
    for rollout in rollouts:
        console.print(one_line(rollout), soft_wrap=True)
    if arguments.output:
        console.print(f"written to {arguments.output / 'rollouts'}", highlight=False, soft_wrap=True, markup=False)


COMMAND = Command(name="rollout", help="run a few sessions and show their traces", configure=configure, run=run)
