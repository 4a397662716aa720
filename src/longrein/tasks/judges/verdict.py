"""Writes the verdict, after everything that might write one in our place is dead.

Part of a hidden test: it runs in the verifier's sandbox, with the standard library of the python3 there.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
from pathlib import Path

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def logs_folder() -> Path:
    """Where the verifier looks for the verdict."""
    return Path(os.environ.get("SANDBOX_ROOT", "") + "/logs/verifier")


def keep_to_ourselves() -> None:
    """Become the parent of every orphan among our descendants, and hide our memory from them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def kill_descendants() -> None:
    """Kill and reap until no child is left: who forks away comes back to us as an orphan.

    All are stopped before the first is killed. Of processes that fork as fast as they can, each dead one would make
    room for a new one; stopped ones keep their places, so that soon there is none for more.
    """
    while _descendants():
        stopped: set[int] = set()
        while fresh := _descendants() - stopped:
            _send(fresh, signal.SIGSTOP)
            stopped |= fresh
        _send(stopped, signal.SIGKILL)
        _reap()
    _reap()


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _reap() -> None:
    """Wait for every child that we have."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _descendants() -> set[int]:
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for child in _children(waiting.pop()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _children(pid: int) -> list[int]:
    # Written by the kernel for each thread.
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += [int(child) for child in (thread / "children").read_text().split()]
    return children


def write_verdict(reward: float, passed: int, total: int) -> None:
    """Leave ``reward.json``; whatever else could be read as a verdict is put aside."""
    leave_no_verdict()
    verdict = {"reward": reward, "passed": passed, "checks": total, "passed_fraction": passed / total}
    (logs_folder() / "reward.json").write_text(json.dumps(verdict))


def leave_no_verdict() -> None:
    """Put aside whatever could be read as one."""
    folder = logs_folder()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    # Renamed, not removed: folders that cannot be emptied can be renamed, too.
    for name in ("reward.txt", "reward.json"):
        with contextlib.suppress(FileNotFoundError):
            (folder / name).rename(folder / f"put-aside-{secrets.token_hex(8)}")
