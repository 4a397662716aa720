"""Learns that a client closed its connection with an answer half unread.

What was sent is in the kernel's buffers first, and nobody says when a client reads it. But a connection that is closed
with something unread in it is reset (RFC 1122, 4.2.2.13), and one that was read to its end is not.
"""

from __future__ import annotations

from collections.abc import Callable

SCOPE_KEY = "longrein.resets"
"""Where a request's ASGI scope has them."""


class Resets:
    """Whom to tell, of one connection, that what was sent last was not read."""

    def __init__(self) -> None:
        self._tell: list[Callable[[], None]] = []

    def watch(self, tell: Callable[[], None]) -> None:
        """Tell of a reset from now on, until the client asks something new on this connection."""
        self._tell.append(tell)

    def forget(self) -> None:
        """The client asks something new: it has read what was sent before."""
        self._tell.clear()

    def happened(self) -> None:
        """The connection was reset."""
        told, self._tell = self._tell, []
        for tell in told:
            tell()
