"""Memory that is not to be had: one error for what torch, numpy and the system call it.

What the kernel grants and takes back later, by killing the process, nobody here can catch.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager

from longrein.errors import EngineError

_SAID = ("can't allocate memory", "not enough memory", "out of memory", "cannot allocate memory", "memory object")
"""By torch's CPU allocator on Linux and Windows, accelerators, the C library and oneDNN."""


class ShortageError(EngineError):
    """Memory ran out."""


@contextmanager
def shortage() -> Generator[None]:
    """Raises :class:`ShortageError` in place of whatever says that memory ran out; all else passes."""
    try:
        yield
    except ShortageError:
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        if not _is_shortage(error):
            raise
        raise ShortageError(f"out of memory ({str(error).splitlines()[0] if str(error) else 'MemoryError'})") from error


def _is_shortage(error: Exception) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return any(words in str(error).lower() for words in _SAID)
