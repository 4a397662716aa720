"""Where each tensor lies in the block of memory that trainer and engine share."""

from __future__ import annotations

import os
import sys
import tempfile

import msgspec


class TensorPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter or saved buffer: its shape, its torch dtype by name (``float32``) and its offset in bytes."""

    shape: tuple[int, ...]
    dtype: str
    offset: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of the shared block. Tied tensors lie in it once."""

    tensors: dict[str, TensorPlace]
    aliases: dict[str, str]
    """Other names of tied tensors -> the name in ``tensors``."""
    size_bytes: int


def anonymous_file() -> int:
    """A file descriptor of memory that has no name, so that nothing can be left behind however we die."""
    if sys.platform == "linux":
        return os.memfd_create("longrein-weights")
    with tempfile.TemporaryFile() as unlinked:
        return os.dup(unlinked.fileno())
