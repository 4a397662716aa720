"""What somebody else's loop waits for in its thread can be ended from ours."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")


class Leash:
    """One thread waits, one future at a time; any thread may end that wait and all later ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = False
        self._awaited: Future[Any] | None = None

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        """The future's result or error.

        Raises:
            concurrent.futures.CancelledError: the leash was ended.
            TimeoutError: the result did not come in time; the future is as it was.
        """
        with self._lock:
            if self._ended:
                future.cancel()
                raise CancelledError
            self._awaited = future
        return future.result(timeout_s)

    def end(self) -> None:
        """Nobody waits any more. Safe to call twice."""
        with self._lock:
            self._ended = True
            if self._awaited is not None:
                self._awaited.cancel()
