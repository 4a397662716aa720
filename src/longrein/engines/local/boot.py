"""What a starting engine process is given on its command line."""

from __future__ import annotations

import msgspec

from longrein.engines.local.config import LocalEngineConfig


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration, and what the process inherits: two file descriptors."""

    config: LocalEngineConfig
    socket_path: str
    """In a private folder of which it is the reason."""
    owner_fd: int
    """A connected socket to the owner."""
    weights_fd: int
    """An anonymous file, for the shared block of weights."""
    parent_pid: int
