"""Folders of this machine as tar archives: how they travel into an environment and back."""

from __future__ import annotations

import io
import logging
import os
import tarfile
from collections.abc import Collection
from pathlib import Path

from longrein.sandboxes.base import SandboxLimits
from longrein.sandboxes.links import without_outside_links
from longrein.sandboxes.tarball import unpack
from longrein.sandboxes.tree import Owner, PrivateTree

_LOG = logging.getLogger(__name__)
_MOST_ENTRIES = 1_000_000
_NAMED = 5


def pack_folder(folder: Path, without: Collection[str] = ()) -> bytes:
    """A host folder's content but for entries ``without``. Symlinks stay symlinks; owners and times are left out."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.relative_to(folder).as_posix() not in without):
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_anonymous)
    return buffer.getvalue()


def unpack_folder(data: bytes, folder: Path) -> None:
    """Write an archive from an environment into a host folder. What could leave it, or is a device, is left out.

    Raises:
        SandboxError: it is no archive.
    """
    tree = unpack(data, SandboxLimits(collect_bytes=len(data), collect_entries=_MOST_ENTRIES))
    if tree.left_out:
        _LOG.warning("left out on the way to %s: %s", folder, ", ".join(tree.left_out[:_NAMED]))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    # Not `TarFile.extract`: its filters had holes, and what made the archive is the agent's.
    ours = PrivateTree(folder, Owner(uid=os.getuid(), gid=os.getgid()))
    ours.restore(without_outside_links(tree, str(folder)))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member
