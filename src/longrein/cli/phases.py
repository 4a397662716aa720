"""What rank 0 of a run tells the others."""

from __future__ import annotations

import os

import msgspec

from longrein.types import Row


def launched_count() -> int:
    """How many processes ``torchrun`` or ``accelerate launch`` started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class SftPhase(msgspec.Struct, frozen=True, kw_only=True):
    """The warm start trains."""

    rows: tuple[Row, ...]
    folder: str
    """Where rank 0 saves the model."""


class GrpoPhase(msgspec.Struct, frozen=True, kw_only=True):
    """GRPO trains."""

    start_model: str
    checkpoint: str
    """Empty at the start."""
    folder: str
    """Where rank 0 saves the model."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The run is over."""


Phase = SftPhase | GrpoPhase | Ended
