"""URLs at which nobody listens, for certain: the port is taken, by a socket that accepts nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def dead_url() -> Iterator[str]:
    """A connection there is refused; a port that was merely free may be another test's server by now."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"
