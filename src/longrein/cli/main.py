"""The command line: one subcommand a file."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from longrein.cli import evaluate, sft, train
from longrein.errors import LongreinError

COMMANDS = (train.COMMAND, sft.COMMAND, evaluate.COMMAND)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code.

    0: done; 1: an error of ours, or the demanded improvement is missing; 2: wrong arguments; 130: interrupted.
    """
    parser = argparse.ArgumentParser(prog="longrein", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help)
        command.configure(sub)
        sub.set_defaults(run=command.run)
    arguments = parser.parse_args(argv)
    logging.basicConfig(
        level=os.environ.get("LONGREIN_LOG", "WARNING").upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        return int(arguments.run(arguments))
    except LongreinError as error:
        print(f"longrein: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("longrein: interrupted; finished rollouts and metrics are in the run directory", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
