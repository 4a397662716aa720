"""How much the private folders of a sandbox hold, and what happens when that is too much.

No quota of the kernel's works for everybody (a file system of its own needs root, and in memory it counts twice), so
this watches. The free space of the file system is asked often, which costs nothing; the folders are measured when so
much of it went that they might be full.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

from longrein.types import Finding

_PAUSE_S = 0.1
_ENTRY_BYTES = 4096
"""Least that a file or folder counts, so that a million empty files count too."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskWatch:
    """Watches one sandbox's folders.

    Args:
        folders: host folders that count.
        limit_bytes: what they may hold together.
        processes: host pids of what runs inside: a file that was removed and is held open takes space, too.
    """

    def __init__(self, folders: tuple[Path, ...], limit_bytes: int, processes: Callable[[], set[int]]) -> None:
        self._folders = folders
        self._limit_bytes = limit_bytes
        self._processes = processes
        self.findings: tuple[Finding, ...] = ()

    async def run(self, kill: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled: whenever the folders hold too much, ``kill`` everything that runs."""
        free = _free_bytes(self._folders[0])
        headroom, gone = self._limit_bytes, 0
        while True:
            await asyncio.sleep(_PAUSE_S)
            now = _free_bytes(self._folders[0])
            gone += max(0, free - now)
            free = now
            # Half: what others free meanwhile hides what we take.
            if 2 * gone < headroom:
                continue
            used = await asyncio.to_thread(self.used_bytes)
            if used > self._limit_bytes:
                self.findings = (self._finding(used),)
                await kill()
            headroom, gone = max(self._limit_bytes - used, self._limit_bytes // 16), 0

    def used_bytes(self) -> int:
        """Space on the disk that the folders take; counting stops where it is more than the limit."""
        used = 0
        for size in self._sizes():
            used += size
            if used > self._limit_bytes:
                break
        return used

    def _finding(self, used: int) -> Finding:
        detail = f"its files took more than {self._limit_bytes >> 20} MB ({used >> 20} counted); it was killed"
        return Finding(kind="disk_limit", detail=detail)

    def _sizes(self) -> Iterator[int]:
        seen: set[int] = set()
        for folder in self._folders:
            with suppress(OSError):
                root = os.open(folder, _FOLDER)
                try:
                    yield from _sizes_below(root, seen)
                finally:
                    os.close(root)
        yield from _removed_but_open(self._processes(), self._folders[0].stat().st_dev, seen)


def _free_bytes(folder: Path) -> int:
    system = os.statvfs(folder)
    return system.f_bfree * system.f_frsize + system.f_ffree * _ENTRY_BYTES


def _sizes_below(root: int, seen: set[int]) -> Iterator[int]:
    """Every entry once, no symlink followed, however deep."""
    waiting = [os.dup(root)]
    names: list[Iterator[str]] = [iter(_listed(root))]
    try:
        while waiting:
            name = next(names[-1], None)
            if name is None:
                os.close(waiting.pop())
                names.pop()
                continue
            with suppress(OSError):
                entry = os.lstat(name, dir_fd=waiting[-1])
                if entry.st_ino not in seen:
                    yield max(entry.st_blocks * 512, _ENTRY_BYTES)
                if entry.st_nlink > 1:
                    seen.add(entry.st_ino)
                if stat.S_ISDIR(entry.st_mode) and len(waiting) < _MAX_DEPTH:
                    below = os.open(name, _FOLDER, dir_fd=waiting[-1])
                    waiting.append(below)
                    names.append(iter(_listed(below)))
    finally:
        for handle in waiting:
            os.close(handle)


_MAX_DEPTH = 200
"""Open folders at once. What is deeper is not counted, and costs 200 names of at least one folder each."""


def _listed(folder: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)  # of an open folder, not of a path
    return []


def _removed_but_open(processes: set[int], device: int, seen: set[int]) -> Iterator[int]:
    for pid in processes:
        for handle in _open_files(pid):
            with suppress(OSError):
                file = handle.stat()
                if file.st_nlink == 0 and file.st_dev == device and file.st_ino not in seen:
                    seen.add(file.st_ino)
                    yield file.st_blocks * 512


def _open_files(pid: int) -> list[Path]:
    with suppress(OSError):
        return list(Path(f"/proc/{pid}/fd").iterdir())
    return []
