"""What a subcommand is, and the arguments that all of them share."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from longrein.config import RunConfig
from longrein.errors import ConfigError
from longrein.run_file import load_config


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One subcommand."""

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """``RUN.toml``, ``--model``, ``--output-dir`` and ``--set``."""
    parser.add_argument("run_file", type=Path, metavar="RUN.toml")
    parser.add_argument("--model", help="another causal LM, folder or hub id, with its own chat template")
    parser.add_argument("--output-dir", help="another run directory")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, as in --set train.max_steps=3"
    )


def read_run_file(arguments: argparse.Namespace) -> RunConfig:
    """The run file with the command line's overrides.

    Raises:
        ConfigError: see :func:`longrein.run_file.load_config`; or an override that is not ``key=value``.
    """
    overrides: dict[str, Any] = {}
    if arguments.model:
        # The template and parser of a run file belong to its model, not to another one.
        path = str(Path(arguments.model).resolve()) if Path(arguments.model).exists() else arguments.model
        overrides |= {
            "model.path": path,
            "model.chat_template": "",
            "model.tool_parser": "auto",
            "model.renderer": "auto",
        }
    if arguments.output_dir:
        overrides["output_dir"] = str(Path(arguments.output_dir).resolve())
    for pair in arguments.set:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {pair}: must be KEY=VALUE, as in --set train.max_steps=3")
        overrides[key] = _toml_value(value)
    return load_config(arguments.run_file, overrides)


def _toml_value(text: str) -> Any:
    """A TOML value; bare words are strings."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
