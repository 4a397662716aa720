"""What a killed owner left behind: processes, cgroups and folders, removed at the next start."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from longrein.errors import SandboxError
from longrein.sandboxes.cgroups import Cgroup
from longrein.sandboxes.layout import remove_tree
from longrein.sandboxes.owner import owner_is_dead
from longrein.types import Finding

_LOG = logging.getLogger(__name__)
_CGROUPS = "cgroups"
_MOST_NAMED = 10
_KILL_ROUNDS = 20
_ROUND_PAUSE_S = 0.01


def note_cgroups(session: Path, folders: tuple[Path, ...]) -> None:
    """Write down, before they are made, which cgroups belong to a session's folder."""
    (session / _CGROUPS).write_text("\n".join(map(str, folders)))


def reap_leftovers(root: Path) -> tuple[str, ...]:
    """Kill and remove what belongs to sandboxes under ``root`` whose owner is dead.

    Returns the names of the sandboxes reaped. What cannot be removed is said in the log.
    """
    if not root.is_dir():
        return ()
    reaped: list[str] = []
    for session in sorted(root.iterdir()):
        if not owner_is_dead(session.name):
            continue
        cgroup = Cgroup(_noted_cgroups(session))
        _kill_all(session.name, cgroup)
        cgroup.remove()
        try:
            remove_tree(session)
        except SandboxError as error:
            _LOG.warning("leftover of a dead process: %s", error)
            continue
        reaped.append(session.name)
    return tuple(reaped)


@cache
def reap_once(root: Path) -> None:
    """The same, once for each process."""
    reap_leftovers(root)


def _noted_cgroups(session: Path) -> tuple[Path, ...]:
    try:
        lines = (session / _CGROUPS).read_text().splitlines()
    except OSError:
        return ()
    return tuple(Path(line) for line in lines if Path(line).name == session.name)


def _kill_all(name: str, cgroup: Cgroup) -> None:
    for _ in range(_KILL_ROUNDS):
        left = cgroup.processes() | processes_of(name)
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_PAUSE_S)
    _LOG.warning("leftover of a dead process: processes of %s do not die", name)


def processes_left(names: tuple[str, ...]) -> tuple[Finding, ...]:
    """What is said about a command that ended and left processes of these names running."""
    if not names:
        return ()
    shown = ", ".join(sorted(set(names))[:_MOST_NAMED])
    detail = f"{len(names)} processes still ran when the command ended, and were killed: {shown}"
    return (Finding(kind="processes_left", detail=detail),)


def command_name(pid: int) -> str:
    """The kernel's name of a process; empty when it is gone."""
    return _read(Path(f"/proc/{pid}/comm")).decode(errors="replace").strip()


def processes_of(name: str) -> set[int]:
    """Processes of the sandbox ``name``, by what they cannot shed: its folder among their mounts; or, where there
    are no mounts of their own, by the marker or the program's name that they were started with."""
    needle = name.encode()
    pids = {int(folder.name) for folder in Path("/proc").glob("[0-9]*")} - {os.getpid()}
    return {pid for pid in pids if any(needle in words for words in _marks(Path(f"/proc/{pid}")))}


def _marks(process: Path) -> Iterator[bytes]:
    yield _read(process / "mountinfo")
    yield _read(process / "environ")
    yield _read(process / "cmdline").partition(b"\0")[0]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
