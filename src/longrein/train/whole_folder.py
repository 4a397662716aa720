"""A folder that is there whole or not at all, whenever its writer is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = "_unfinished"
"""The library uploads nothing to the hub that begins with _."""


@contextmanager
def written_whole(folder: Path) -> Generator[Path, None, None]:
    """Yield an empty folder of the same name to write to; at the end, unless an error is raised, it becomes ``folder``.

    It lies in ``_unfinished`` beside ``folder``, is synced to the disk, and renamed. An older ``folder`` is replaced.
    """
    part = folder.parent / UNFINISHED / folder.name
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    for path in [*part.rglob("*"), part]:
        _sync(path)
    if folder.exists():
        # Two renames, since none replaces a folder that holds something.
        old = part.with_name(f"{part.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    part.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(part.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
