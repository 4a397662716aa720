"""Runs a program of the code under test: bounded in time, memory and output, and with nothing of it left afterwards.

Part of a hidden test.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from no_signals import forbid_signals
from verdict import kill_descendants

_CPU_S = 10
_MEMORY_BYTES = 1 << 30
_FILE_BYTES = 4 << 20
_PROCESSES = 64
"""More of them would leave us no processor time to stop them."""


class Budget:
    """Seconds that all runs of a judge may take together. Over it they fail, before the verifier's own time is up."""

    def __init__(self, seconds: float) -> None:
        self._ends_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """What is left, never quite nothing."""
        return max(0.01, self._ends_s - time.monotonic())


def run_limited(argv: list[str], stdin: bytes, budget: Budget) -> bytes | None:
    """What it printed; ``None`` if it hung or failed. Nothing that it started lives on."""
    with tempfile.TemporaryFile() as printed:
        try:
            done = subprocess.run(
                argv,
                input=stdin,
                # A file, since the bound on files keeps a flood out of our memory.
                stdout=printed,
                stderr=subprocess.DEVNULL,
                timeout=budget.left_s,
                preexec_fn=limit_child,
                start_new_session=True,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        finally:
            kill_descendants()
        printed.seek(0)
        return printed.read() if done.returncode == 0 else None


def limit_child() -> None:
    """Bound this process, before it becomes the code under test."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    processes = _own_threads() + _PROCESSES
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    processes = processes if hard == resource.RLIM_INFINITY else min(processes, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    forbid_signals()


def _own_threads() -> int:
    """Threads of our user, by which the kernel counts: those of the sandbox where it has its own processes."""
    count = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                count += sum(1 for _ in (entry / "task").iterdir())
    return count
