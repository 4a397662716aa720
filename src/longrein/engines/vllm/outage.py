"""How long somebody waits for servers that went away, told from how long they worked in between."""

from __future__ import annotations

import time

from longrein.errors import EngineError, EngineUnreachableError

MOST_OUTAGES = 4
"""That one request sees so many of them is no accident any more: it may be what ends the servers."""


class Patience:
    """Of one request. Each outage has the whole time, unless too many of them came one after the other.

    Args:
        outage_timeout_s: how long one outage may last.
    """

    def __init__(self, outage_timeout_s: float) -> None:
        self._timeout_s = outage_timeout_s
        self._outages = 0
        self._first_s = 0.0
        self._began_s: float | None = None

    @property
    def is_out(self) -> bool:
        """Whether no server has been well since the last loss."""
        return self._began_s is not None

    def well(self) -> None:
        """A server is well: the outage is over."""
        self._began_s = None

    def lost(self, error: EngineUnreachableError) -> None:
        """A server went away, or is still gone. Raises :class:`EngineError` once that is too much."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
            self._first_s = self._first_s if self._outages else now_s
            self._outages += 1
        if now_s - self._began_s > self._timeout_s:
            raise EngineError(f"{error}. Waited {self._timeout_s:g} s for it.") from error
        if self._outages > MOST_OUTAGES and now_s - self._first_s > self._timeout_s:
            raise EngineError(
                f"{error}. That is loss {self._outages} of one request, though servers were well in between; see "
                "whether it is what ends them"
            ) from error
