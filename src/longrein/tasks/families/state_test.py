"""The hidden test of a family that is judged by what lies in the work directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from longrein.tasks.families.shipped import shipped, start_script

Check = dict[str, Any]
"""``{"kind": ..., ...}``: a function of :mod:`longrein.tasks.judges.work_tree` and its arguments."""


def state_test(*checks: Check) -> dict[str, bytes]:
    """Full marks if all checks hold."""
    return {
        "test.sh": start_script("work_tree.py"),
        "work_tree.py": shipped("work_tree"),
        "verdict.py": shipped("verdict"),
        "checks.json": json.dumps(checks).encode(),
    }


def says(path: str, text: str) -> Check:
    """A file with this text, white space at the ends of lines aside."""
    return {"kind": "text", "path": path, "text": text}


def has_bytes(path: str, data: bytes) -> Check:
    """A file with exactly these bytes."""
    return {"kind": "sha256", "path": path, "digest": hashlib.sha256(data).hexdigest()}


def unchanged(files: Mapping[str, str | bytes]) -> list[Check]:
    """These files are as they were."""
    return [has_bytes(path, data.encode() if isinstance(data, str) else data) for path, data in files.items()]


def only(paths: Sequence[str]) -> Check:
    """These files and links are there, and no others."""
    return {"kind": "only", "paths": sorted(paths)}
