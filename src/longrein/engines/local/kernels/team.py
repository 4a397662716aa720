"""Runs a compiled loop on torch's own threads, so that two sets of threads never want the same cores."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch

_LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_THREAD_NUMBER = ctypes.CFUNCTYPE(ctypes.c_int)


class Team(Protocol):
    """Threads that run a loop together."""

    thread_number: int
    """Address of the C function ``int (void)`` that tells a thread its number, from 0 on."""

    def size(self, parts: int) -> int:
        """How many threads take part in work of so many parts."""
        ...

    def run(self, loop: int, block: int, threads: int) -> None:
        """Call the C function ``void (void *)`` at address ``loop`` with ``block`` in each thread, and wait for all."""
        ...


class TorchTeam:
    """A :class:`Team` of the threads of the libgomp that torch brings along and computes with."""

    def __init__(self, library: Path) -> None:
        # It is loaded already: this opens the same one.
        self._library = ctypes.CDLL(str(library))
        self.thread_number = _address(self._library.omp_get_thread_num)
        self._parallel = self._library.GOMP_parallel
        self._parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._parallel.restype = None

    def size(self, parts: int) -> int:
        """See :class:`Team`."""
        return max(1, min(parts, torch.get_num_threads()))

    def run(self, loop: int, block: int, threads: int) -> None:
        """See :class:`Team`."""
        self._parallel(loop, block, threads, 0)


class Alone:
    """A :class:`Team` of the calling thread."""

    def __init__(self) -> None:
        self._zero = _THREAD_NUMBER(lambda: 0)
        self.thread_number = _address(self._zero)

    def size(self, parts: int) -> int:
        """See :class:`Team`."""
        return 1

    def run(self, loop: int, block: int, threads: int) -> None:
        """See :class:`Team`."""
        _LOOP(loop)(block)


@lru_cache(maxsize=1)
def the_team() -> Team:
    """Torch's threads where they are libgomp's, else just the calling one."""
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    return TorchTeam(libraries[0]) if libraries else Alone()


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
