"""``longrein sft RUN.toml``: the warm start alone."""

from __future__ import annotations

import argparse

from rich.console import Console

from longrein.cli import parts
from longrein.cli.command import Command, add_run_arguments, read_run_file
from longrein.cli.phases import Ended
from longrein.cli.ranks import check_divides, follow, launched_ranks
from longrein.cli.warm_start import warm_start
from longrein.run_file import Problem, config_error


def run(arguments: argparse.Namespace) -> int:
    """Warm-start the run's model and save it under ``<output_dir>/sft``."""
    config = parts.checked(read_run_file(arguments), str(arguments.run_file))
    if not config.sft.steps:
        problem = Problem(key="sft.steps", value=0, fix="set it to at least 1")
        raise config_error(str(arguments.run_file), [problem])
    ranks = launched_ranks()
    check_divides(config, ranks)
    if ranks.index:
        return follow(config, ranks)
    folder = warm_start(config, Console(), ranks)
    ranks.from_first(Ended())
    Console().print(f"saved {folder}", soft_wrap=True, markup=False)
    return 0


COMMAND = Command(name="sft", help="warm-start a model on oracle rollouts", configure=add_run_arguments, run=run)
