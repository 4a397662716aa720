"""``longrein train RUN.toml``: held-out judgement, warm start, GRPO, judgement again.

Each phase leaves something whole in the run directory; one that has is not done again. A new run's directory is empty.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from rich.console import Console

from longrein.cli import parts
from longrein.cli.command import Command, add_run_arguments, read_run_file
from longrein.cli.curve import draw_curve
from longrein.cli.engine import RunEngine, started_engine
from longrein.cli.evaluate import judge
from longrein.cli.grpo import train_grpo
from longrein.cli.phases import Ended
from longrein.cli.ranks import check_divides, follow, launched_ranks
from longrein.cli.run_directory import MODEL, check_same_run, set_aside, write_config
from longrein.cli.warm_start import DEMONSTRATIONS, WARM, warm_start
from longrein.config import RunConfig
from longrein.rollout.evaluate import EvalReport, Interval, paired_difference
from longrein.sole_writer import sole_writer
from longrein.train.folder_weights import folder_weights
from longrein.train.ranks import Ranks


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of every run, and ``--resume``."""
    add_run_arguments(parser)
    parser.add_argument("--resume", action="store_true", help="go on with the run in output_dir")


def run(arguments: argparse.Namespace) -> int:
    """The whole run. Returns 1 when a demanded improvement is missing."""
    config = parts.checked(read_run_file(arguments), str(arguments.run_file))
    ranks = launched_ranks()
    check_divides(config, ranks)
    if ranks.index:
        return follow(config, ranks)
    run_dir = Path(config.output_dir)
    if arguments.resume:
        check_same_run(config)
    else:
        with sole_writer(run_dir / "run"):
            moved = set_aside(run_dir)
        if moved:
            print(f"an earlier run stands in {run_dir}; it is now {moved}")
    with sole_writer(run_dir / "run"):
        write_config(config)
        with started_engine(config) as engine:
            code = _Run(config, engine, Console(), ranks).whole()
        # An error does without: the others notice that this process is gone.
        ranks.from_first(Ended())
        return code


class _Run:
    def __init__(self, config: RunConfig, engine: RunEngine, console: Console, ranks: Ranks) -> None:
        self._config = config
        self._engine = engine
        self._console = console
        self._ranks = ranks
        self._run_dir = Path(config.output_dir)
        self._held_out = parts.tasks(config, "test")

    def whole(self) -> int:
        started_s = time.monotonic()
        start_model = self._warm_start()
        before = self._judge("warm start" if self._config.sft.steps else "base")
        self._say(f"GRPO begins {time.monotonic() - started_s:.0f} s after the start")
        grpo_started_s = time.monotonic()
        self._train(start_model)
        self._say(f"GRPO took {time.monotonic() - grpo_started_s:.0f} s")
        after = self._judge("GRPO")
        curve = draw_curve(self._run_dir, before, after)
        drawn = f", curve {curve.name}" if curve else ""
        self._console.print(f"{'':>12}  run directory {self._run_dir}{drawn}", soft_wrap=True, markup=False)
        self._say(f"{time.monotonic() - started_s:.0f} s in all")
        return self._verdict(before, after)

    def _warm_start(self) -> str:
        """The folder that GRPO starts from; the engine serves it on return, as version 0."""
        if not self._config.sft.steps:
            return self._config.model.path
        self._judge("base")
        folder = self._run_dir / WARM
        if not folder.is_dir():
            # What a killed process left of them is not known to be all.
            shutil.rmtree(self._run_dir / DEMONSTRATIONS, ignore_errors=True)
            warm_start(self._config, self._console, self._ranks)
        self._engine.weights.update(folder_weights(folder), 0)
        return str(folder)

    def _train(self, start_model: str) -> None:
        """The trained model is in its folder, and the engine serves it, on return."""
        folder = self._run_dir / MODEL
        if folder.is_dir():
            self._engine.weights.update(folder_weights(folder), self._config.train.max_steps)
        else:
            train_grpo(self._config, start_model, self._engine, self._console, self._ranks)

    def _judge(self, label: str) -> EvalReport | None:
        if not self._held_out:
            return None
        return judge(self._config, self._engine.spec, self._held_out, label, self._console)

    def _verdict(self, before: EvalReport | None, after: EvalReport | None) -> int:
        if before is None or after is None:
            return 0
        difference: Interval = paired_difference(after, before)
        self._console.print(f"{'gain':>12}: {difference} (paired, 95 % CI)", highlight=False, soft_wrap=True)
        if self._config.eval.require_improvement and not difference.above_zero:
            self._console.print("the paired interval does not lie above 0: no improvement is shown")
            return 1
        return 0

    def _say(self, text: str) -> None:
        self._console.print(f"{'':>12}  {text}", highlight=False, soft_wrap=True)


COMMAND = Command(name="train", help="train a model inside its agent", configure=configure, run=run)
