"""Rows on disk: what a refused step trained on, for looking at it and for running it again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longrein.errors import BatchError
from longrein.types import Row

ARRAYS = ("token_ids", "loss_mask", "logprobs")
NUMBERS = ("advantage", "weight", "min_policy_version", "max_policy_version")
NAMES = ("rollout_id", "group_id")


def save_rows(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows to one ``.npz``: the arrays of all rows end to end, ``sizes``, and one column for each other field.

    Folders are made. Returns ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {"sizes": [row.token_ids.size for row in rows]}
    columns |= {name: np.concatenate([getattr(row, name) for row in rows]) for name in ARRAYS}
    columns |= {name: [getattr(row, name) for row in rows] for name in (*NUMBERS, *NAMES)}
    np.savez_compressed(path, **columns)
    return path


def load_rows(path: Path) -> tuple[Row, ...]:
    """Read what :func:`save_rows` wrote.

    Raises:
        BatchError: the file is not one of ours.
    """
    try:
        with np.load(path) as file:
            columns = {name: file[name] for name in ("sizes", *ARRAYS, *NUMBERS, *NAMES)}
    except (OSError, ValueError, KeyError) as error:
        raise BatchError(f"{path} holds no rows: {error}. Give a file that a refused step left behind.") from error
    ends = np.cumsum(columns["sizes"])[:-1]
    parts = {name: np.split(columns[name], ends) for name in ARRAYS}
    return tuple(
        Row(
            **{name: parts[name][index] for name in ARRAYS},
            **{name: columns[name][index].item() for name in (*NUMBERS, *NAMES)},
        )
        for index in range(len(columns["sizes"]))
    )
