"""Memory, pid and processor limits by control groups, version 1 or 2, where we may write them.

Source: the kernel's ``admin-guide/cgroup-v1`` and ``admin-guide/cgroup-v2``.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from longrein.sandboxes.base import SandboxLimits
from longrein.types import Finding

_LOG = logging.getLogger(__name__)
_REMOVE_TRIES = 50
_REMOVE_PAUSE_S = 0.004
_PERIOD_US = 100_000
_CONTROLLERS = ("memory", "pids", "cpu")
_VERSION_1_FILES = {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"}


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

    def hits(self) -> tuple[Finding, ...]:
        """Limits that were hit so far."""
        found: list[Finding] = []
        for folder in self.folders:
            # Version 1 and 2 have the same words in files of different names.
            killed = max(_counted(folder / name, "oom_kill") for name in ("memory.events", "memory.oom_control"))
            refused = _counted(folder / "pids.events", "max")
            if killed:
                found.append(Finding(kind="memory_limit", detail=f"{killed} processes killed for want of memory"))
            if refused:
                found.append(Finding(kind="pids_limit", detail=f"{refused} processes could not be started"))
        return tuple(found)

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
    """A folder under which we may make groups, and what the limits' files there are called."""

    parent: Path
    controllers: tuple[str, ...]

    def files(self, limits: SandboxLimits) -> dict[str, str]:
        """File -> what to write. Those of swap are missing where swap is not counted."""
        quota_us = max(1000, round(limits.cpus * _PERIOD_US))
        known = {
            "memory": {
                "memory.max": str(limits.memory_bytes),
                "memory.swap.max": "0",
                "memory.limit_in_bytes": str(limits.memory_bytes),
                "memory.memsw.limit_in_bytes": str(limits.memory_bytes),
            },
            "pids": {"pids.max": str(limits.pids)},
            "cpu": {
                "cpu.max": f"{quota_us} {_PERIOD_US}",
                "cpu.cfs_period_us": str(_PERIOD_US),
                "cpu.cfs_quota_us": str(quota_us),
            },
        }
        return {file: text for controller in self.controllers for file, text in known[controller].items()}


def make_cgroup(name: str, limits: SandboxLimits) -> Cgroup:
    """Make the groups ``name`` with their limits. Where none can be made, it is said once in the log."""
    made: list[Path] = []
    for hierarchy in _hierarchies():
        folder = hierarchy.parent / name
        folder.mkdir()
        made.append(folder)
        for file, text in hierarchy.files(limits).items():
            with suppress(FileNotFoundError, PermissionError):  # those of the other version, or of swap
                (folder / file).write_text(text)
    return Cgroup(tuple(made))


def planned_folders(name: str) -> tuple[Path, ...]:
    """Where :func:`make_cgroup` will make the groups ``name``."""
    return tuple(hierarchy.parent / name for hierarchy in _hierarchies())


def counts_processes() -> bool:
    """Whether a group bounds the number of processes."""
    return any("pids" in hierarchy.controllers for hierarchy in _hierarchies())


@cache
def _hierarchies() -> tuple[_Hierarchy, ...]:
    found = _version_2() or tuple(hierarchy for name in _CONTROLLERS for hierarchy in _version_1(name))
    missing = [name for name in _CONTROLLERS if not any(name in hierarchy.controllers for hierarchy in found)]
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
            # The processor's is the one that a delegated group most often lacks.
            with_cpu = _takes(parent, ("cpu.max",))
            return (_Hierarchy(parent=parent, controllers=_CONTROLLERS if with_cpu else _CONTROLLERS[:2]),)
    return ()


def _version_1(controller: str) -> tuple[_Hierarchy, ...]:
    for parent in _own_folders("cgroup", controller):
        if _takes(parent, (_VERSION_1_FILES[controller], "cgroup.procs")):
            return (_Hierarchy(parent=parent, controllers=(controller,)),)
    return ()


def _counted(file: Path, name: str) -> int:
    """The number after ``name`` in a file of such lines; 0 where there is none."""
    with suppress(OSError):
        for line in file.read_text().splitlines():
            word, _, number = line.partition(" ")
            if word == name:
                return int(number)
    return 0


def _takes(parent: Path, files: tuple[str, ...]) -> bool:
    """Try it: a group can be made here, has these files, and a process may be moved into it."""
    # Several threads may try at once.
    folder = parent / f"longrein-probe-{os.getpid()}-{secrets.token_hex(4)}"
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
