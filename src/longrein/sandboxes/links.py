"""Symlinks of a collected work directory: which of them stay inside it."""

from __future__ import annotations

from collections import deque
from pathlib import PurePosixPath

import msgspec

from longrein.sandboxes.base import WorkTree

_MAX_STEPS = 256
"""Path components followed for one link; who needs more goes in circles."""


def without_outside_links(tree: WorkTree, workdir: str) -> WorkTree:
    """The tree without symlinks that lead outside it, or in circles.

    Args:
        tree: what was collected.
        workdir: absolute path at which it will be restored; an absolute link into it stays.
    """
    inside = {path: target for path, target in tree.symlinks.items() if not _leads_outside(tree, path, workdir)}
    return msgspec.structs.replace(tree, symlinks=inside)


def _leads_outside(tree: WorkTree, path: str, workdir: str) -> bool:
    """Follow a path as the kernel would: ``..`` after a link goes up from where that link led, so text alone lies."""
    waiting = deque(path.split("/"))
    at: list[str] = []
    for _ in range(_MAX_STEPS):
        if not waiting:
            return False
        part = waiting.popleft()
        if part == "..":
            if not at:
                return True
            at.pop()
            continue
        target = tree.symlinks.get("/".join([*at, part]))
        if target is None:
            at.append(part)
            continue
        parts = PurePosixPath(target).parts
        if target.startswith("/"):
            if not PurePosixPath(target).is_relative_to(workdir):
                return True
            at, parts = [], parts[len(PurePosixPath(workdir).parts) :]
        waiting.extendleft(reversed(parts))
    return True
