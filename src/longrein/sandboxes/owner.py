"""Names that tell which process a folder or cgroup belongs to, so that the leftovers of the dead can be told apart."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

_NAME = re.compile(r"longrein-(\d+)-(\d+)-(\d+)-[0-9a-f]+")


def own_name() -> str:
    """A fresh name: pid namespace, pid and start time of this process, and a random part."""
    return f"longrein-{_pid_namespace()}-{os.getpid()}-{_start_ticks(os.getpid())}-{secrets.token_hex(6)}"


def owner_is_dead(name: str) -> bool:
    """True if ``name`` was made by :func:`own_name` in this pid namespace by a process that is no more."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    namespace, pid, ticks = (int(part) for part in match.groups())
    if namespace != _pid_namespace():
        return False
    return not _is_alive(pid) or _start_ticks(pid) != ticks


def _pid_namespace() -> int:
    path = Path("/proc/self/ns/pid")
    return path.stat().st_ino if path.exists() else 0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start_ticks(pid: int) -> int:
    """Field 22 of ``/proc/<pid>/stat``; 0 where there is no procfs."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])
