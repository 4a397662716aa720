"""A run never writes over another: what an earlier one left in the folder is moved aside, whole."""

from __future__ import annotations

from itertools import count
from pathlib import Path


def set_aside(run_dir: Path) -> Path | None:
    """Move an earlier run to ``<folder>.1``, ``.2``, ...; returns where it went, or ``None`` if there was none."""
    if not any((run_dir / name).exists() for name in ("metrics.jsonl", "rollouts", "config.json")):
        return None
    target = next(path for number in count(1) if not (path := run_dir.with_name(f"{run_dir.name}.{number}")).exists())
    return run_dir.rename(target)
