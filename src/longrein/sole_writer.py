"""One process alone writes."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from longrein.errors import WorkerError

_POLL_S = 0.05


@contextmanager
def sole_writer(path: Path, timeout_s: float = 0.0) -> Generator[None, None, None]:
    """Hold a file or folder for this process, by a lock file beside it; a process that dies lets go of it.

    Raises:
        WorkerError: another process still holds it after ``timeout_s`` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + timeout_s
    with path.with_name(f".{path.name}.lock").open("wb") as lock:
        while not _taken(lock.fileno()):
            if time.monotonic() >= deadline_s:
                raise WorkerError(
                    f"another process writes to {path.parent}; wait for it or end it, or choose another output_dir"
                )
            time.sleep(_POLL_S)
        yield


def _taken(file_descriptor: int) -> bool:
    try:
        fcntl.flock(file_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
