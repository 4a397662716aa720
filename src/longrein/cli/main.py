"""The command line: one subcommand a file."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from longrein.cli.command import Command
from longrein.cli.interrupt import EXIT_CODE, MESSAGE, bounded_interrupt
from longrein.errors import LongreinError

COMMANDS = ("train", "sft", "evaluate", "rollout", "serve", "tasks", "doctor")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code.

    0: done; 1: an error of ours, or the demanded improvement is missing; 2: wrong arguments; 130: interrupted.
    """
    parser = argparse.ArgumentParser(prog="longrein", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _share_cores()
    for command in map(_load, COMMANDS):
        sub = commands.add_parser(command.name, help=command.help, description=command.help)
        command.configure(sub)
        sub.set_defaults(run=command.run)
    arguments = parser.parse_args(argv)
    logging.basicConfig(
        level=os.environ.get("LONGREIN_LOG", "WARNING").upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        with bounded_interrupt():
            return int(arguments.run(arguments))
    except LongreinError as error:
        print(f"longrein: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(MESSAGE, file=sys.stderr)
        return EXIT_CODE


def _share_cores() -> None:
    """Keep OpenMP's idle threads from spinning while trainer and engine share the cores (5x on two cores).

    libgomp reads it when torch is loaded, so this comes before the subcommands are imported.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _load(module: str) -> Command:
    command: Command = import_module(f"longrein.cli.{module}").COMMAND
    return command


if __name__ == "__main__":
    sys.exit(main())
