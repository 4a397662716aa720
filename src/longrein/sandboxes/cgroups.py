"""Memory and pid limits by control groups, version 1 or 2, where we may write them.

Source: the kernel's ``admin-guide/cgroup-v1`` and ``admin-guide/cgroup-v2``.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

_LOG = logging.getLogger(__name__)
_REMOVE_TRIES = 50
_REMOVE_PAUSE_S = 0.004


class Cgroup:
    """The groups of one sandbox: one folder a hierarchy, none where limits cannot be set."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.folders = folders

    def attach(self, pid: int) -> None:
        """Move a process in; its later children follow."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def processes(self) -> set[int]:
        """Host pids of everything inside."""
        pids: set[int] = set()
        for folder in self.folders:
            with suppress(OSError):
                pids |= {int(line) for line in (folder / "cgroup.procs").read_text().split()}
        return pids

    def remove(self) -> None:
        """Remove the groups once their processes are dead. Those already gone are fine."""
        for folder in self.folders:
            for _ in range(_REMOVE_TRIES):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # EBUSY for a moment after the last process died
                    time.sleep(_REMOVE_PAUSE_S)
                    continue
                break


class _Hierarchy(msgspec.Struct, frozen=True, kw_only=True):
    """A folder under which we may make groups, and the files that hold the limits there."""

    parent: Path
    memory_files: tuple[str, ...] = ()
    pids_files: tuple[str, ...] = ()


def make_cgroup(name: str, memory_bytes: int, pids: int) -> Cgroup:
    """Make the groups ``name`` with their limits. Where none can be made, it is said once in the log."""
    made: list[Path] = []
    for hierarchy in _hierarchies():
        folder = hierarchy.parent / name
        folder.mkdir()
        made.append(folder)
        for file in hierarchy.memory_files:
            with suppress(FileNotFoundError, PermissionError):  # no swap accounting: no such file
                (folder / file).write_text("0" if "swap.max" in file else str(memory_bytes))
        for file in hierarchy.pids_files:
            (folder / file).write_text(str(pids))
    return Cgroup(tuple(made))


def planned_folders(name: str) -> tuple[Path, ...]:
    """Where :func:`make_cgroup` will make the groups ``name``."""
    return tuple(hierarchy.parent / name for hierarchy in _hierarchies())


@cache
def _hierarchies() -> tuple[_Hierarchy, ...]:
    found = _version_2() or (*_version_1("memory"), *_version_1("pids"))
    limited = {"memory": any(h.memory_files for h in found), "pids": any(h.pids_files for h in found)}
    missing = [what for what, there in limited.items() if not there]
    if missing:
        _LOG.warning(
            "no writable cgroup for %s: sandboxes run without that limit (run in a delegated cgroup, for example "
            "`systemd-run --user --scope -p Delegate=yes`, or as root)",
            " and ".join(missing),
        )
    return found


def _version_2() -> tuple[_Hierarchy, ...]:
    for parent in _own_folders("cgroup2", ""):
        if _takes(parent, ("memory.max", "pids.max", "cgroup.procs")):
            return (
                _Hierarchy(parent=parent, memory_files=("memory.max", "memory.swap.max"), pids_files=("pids.max",)),
            )
    return ()


def _version_1(controller: str) -> tuple[_Hierarchy, ...]:
    files = {"memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), "pids": ("pids.max",)}[controller]
    for parent in _own_folders("cgroup", controller):
        if _takes(parent, (files[0], "cgroup.procs")):
            if controller == "memory":
                return (_Hierarchy(parent=parent, memory_files=files),)
            return (_Hierarchy(parent=parent, pids_files=files),)
    return ()


def _takes(parent: Path, files: tuple[str, ...]) -> bool:
    """Try it: a group can be made here, has these files, and a process may be moved into it."""
    folder = parent / f"longrein-probe-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        return False
    try:
        writable = all(os.access(folder / file, os.W_OK) for file in files)
        # Moving needs write access to the common ancestor too, and we are somewhere below this parent.
        return writable and os.access(parent / "cgroup.procs", os.W_OK)
    finally:
        folder.rmdir()


class _Mounted(msgspec.Struct, frozen=True, kw_only=True):
    point: Path
    """Where it is mounted."""
    root: str
    """Which of its folders is mounted there."""


def _own_folders(kind: str, controller: str) -> tuple[Path, ...]:
    """Our own group's folder and its ancestors, innermost first, in the mounted hierarchy of that controller."""
    mounted = _mount_of(kind, controller)
    if mounted is None:
        return ()
    inside = Path(_own_path(controller))
    own = mounted.point / (inside.relative_to(mounted.root) if inside.is_relative_to(mounted.root) else ".")
    return tuple(folder for folder in (own, *own.parents) if folder.is_relative_to(mounted.point) and folder.is_dir())


def _mount_of(kind: str, controller: str) -> _Mounted | None:
    """Mount point of a hierarchy, and which of its folders is mounted there."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, (fstype, _, options) = left.split(), right.split(" ", 2)
        if fstype == kind and (not controller or controller in options.split(",")):
            return _Mounted(point=Path(fields[4]), root=fields[3])
    return None


def _own_path(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"
