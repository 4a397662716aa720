"""What the tests run inside sandboxes, and how they look for what is left outside."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from longrein.sandboxes.base import Sandbox
from longrein.sandboxes.cgroups import planned_folders
from longrein.sandboxes.leftovers import processes_of
from longrein.types import Mount

PREFIX = Path(sys.base_prefix).resolve()
PYTHON = str(PREFIX / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")
PYTHON_MOUNTS = () if PREFIX.is_relative_to("/usr") else (Mount(source=str(PREFIX), target=str(PREFIX)),)

DAEMON = """
import os, time, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        open("daemon.pid", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists("daemon.pid"):
    time.sleep(0.01)
"""
"""Double-forked, in a session of its own, deaf to everything that can be ignored."""


def python(code: str) -> tuple[str, ...]:
    return (PYTHON, "-c", code)


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


async def until_written(sandbox: Sandbox, path: str) -> None:
    """Wait for what runs in the sandbox to have written ``path``."""
    async with asyncio.timeout(60):
        while True:
            with suppress(FileNotFoundError):
                await sandbox.read(path)
                return
            await asyncio.sleep(0.01)


def cgroups_writable() -> bool:
    return len(planned_folders("x")) > 0


def left_behind(root: Path, owner: int | None = None) -> dict[str, list[str]]:
    """Folders and processes of any sandbox under ``root``, and cgroups of sandboxes of the process ``owner`` (this
    one unless named); all empty when nothing is left."""
    pid = owner or os.getpid()
    folders = sorted(path.name for path in root.iterdir()) if root.exists() else []
    return {
        "folders": folders,
        "processes": [f"{found}: {_command(found)}" for found in sorted(processes_of(f"{root.name}/longrein-"))],
        "cgroups": [str(group) for parent in _cgroup_parents() for group in parent.glob(f"longrein-*-{pid}-*")],
    }


def _cgroup_parents() -> list[Path]:
    return [folder.parent for folder in planned_folders("x")]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "gone"
