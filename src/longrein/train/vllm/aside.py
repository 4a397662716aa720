"""Something done in a thread that may hang for ever, and must not take its owner with it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from longrein.errors import EngineError


class Aside:
    """Begins at once. The thread does not keep the process alive.

    Args:
        act: what is done; raises :class:`EngineError` where it fails.
        what: for messages, such as ``"sending weights"``.
    """

    def __init__(self, act: Callable[[], None], what: str) -> None:
        self._act = act
        self._what = what
        self._done = False
        self._error: EngineError | None = None
        self._thread = threading.Thread(target=self._run, name=f"longrein-vllm {what}", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end. Raises what was raised, or :class:`EngineError` if it does not end in time."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise EngineError(f"{self._what} did not end within {timeout_s:g} s; see the servers' logs")
        if self._error is not None:
            raise self._error
        if not self._done:
            raise EngineError(f"{self._what} failed; the reason is printed above")

    def _run(self) -> None:
        try:
            self._act()
            self._done = True
        except EngineError as error:
            self._error = error
