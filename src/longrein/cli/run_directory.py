"""The folder of a run: never written over by another run, and gone on with only by the same one."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from longrein.config import RunConfig
from longrein.errors import CheckpointError

CONFIG = "config.json"
MODEL = "model"
FIXED = (
    "seed",
    "model",
    "tasks",
    "sft",
    "rollout.num_generations",
    "rollout.temperature",
    "eval.samples",
    "eval.pass_at",
)
"""Keys and tables that finished work depends on: a resumed run has the same."""


def set_aside(run_dir: Path) -> Path | None:
    """Move an earlier run to ``<folder>.1``, ``.2``, ...; returns where it went, or ``None`` if there was none."""
    if not any((run_dir / name).exists() for name in ("metrics.jsonl", "rollouts", CONFIG)):
        return None
    target = next(path for number in count(1) if not (path := run_dir.with_name(f"{run_dir.name}.{number}")).exists())
    return run_dir.rename(target)


def write_config(config: RunConfig) -> None:
    """Keep the resolved configuration in the run directory."""
    write_at_once(Path(config.output_dir) / CONFIG, msgspec.json.format(msgspec.json.encode(config)))


def write_at_once(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def check_same_run(config: RunConfig) -> None:
    """See that the run directory holds a run of this configuration, but for what may change on the way.

    Raises:
        CheckpointError: nothing to resume, or every key that differs, with both values.
    """
    run_dir = Path(config.output_dir)
    earlier = _config_of(run_dir)
    fixed = [*FIXED, "train.max_steps"] if (run_dir / MODEL).exists() else FIXED
    differing = [
        f"  {key} was {was!r} and is {now!r}"
        for name in fixed
        for key, was, now in _differences(name, _value(earlier, name), _value(config, name))
    ]
    if differing:
        keys = "\n".join(differing)
        raise CheckpointError(
            f"{run_dir} holds a run that differs from the run file in what its finished work depends on:\n{keys}\n"
            "Resume with its own values, or start a new run without --resume."
        )


def _config_of(run_dir: Path) -> RunConfig:
    try:
        return msgspec.json.decode((run_dir / CONFIG).read_bytes(), type=RunConfig)
    except OSError as error:
        raise CheckpointError(f"{run_dir} holds no run to resume ({error}); start it without --resume") from error
    except msgspec.DecodeError as error:
        raise CheckpointError(
            f"{run_dir / CONFIG} cannot be read: {error}. Put it right, or start a new run without --resume."
        ) from error


def _value(config: RunConfig, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _differences(name: str, was: Any, now: Any) -> list[tuple[str, Any, Any]]:
    if not isinstance(was, msgspec.Struct):
        return [(name, was, now)] if was != now else []
    return [
        found
        for field in was.__struct_fields__
        for found in _differences(f"{name}.{field}", getattr(was, field), getattr(now, field))
    ]
