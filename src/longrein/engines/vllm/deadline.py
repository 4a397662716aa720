"""One limit for a whole request: httpx bounds each read alone, and would wait for ever for a server that drips."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Any, Self

_CONNECTED = frozenset({"connection.connect_tcp.complete", "connection.start_tls.complete"})


class Deadline:
    """Shuts the connection of one request when its time is up; a context manager around it.

    Args:
        limit_s: from the beginning on.
    """

    def __init__(self, limit_s: float) -> None:
        self._timer = threading.Timer(limit_s, self._shut)
        self._timer.daemon = True
        self._socket: socket.socket | None = None
        self._over = False

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """Learns of the connection: httpcore's ``trace`` extension."""
        if event in _CONNECTED:
            self._socket = info["return_value"].get_extra_info("socket")
            if self._over:
                self._shut()

    def check(self) -> None:
        """Raise ``TimeoutError`` if the time was up: a body that has no length ends like a whole one."""
        if self._over:
            raise TimeoutError("it was answering, but too slowly")

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def _shut(self) -> None:
        self._over = True
        if self._socket is not None:
            # It may be closed already.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
