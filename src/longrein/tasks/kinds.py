"""Kinds of tasks: those that are alike in some keys of their metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KINDS = ("family", "difficulty")
"""Keys by which tasks, and how often they are solved, are told apart."""


def kind_of(metadata: Mapping[str, Any], keys: Sequence[str] = KINDS) -> str:
    """``codec/2``: the values of these keys, as far as they are there; ``""`` where none is."""
    return "/".join(str(metadata[key]) for key in keys if key in metadata)
