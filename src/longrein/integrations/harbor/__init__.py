"""Harbor (0.26, Python 3.12 and newer) on our sandboxes, and its environments as sandboxes of ours.

Nothing here imports Harbor before one of these is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longrein.integrations.harbor.backend import HarborBackend
    from longrein.integrations.harbor.environment import BubblewrapEnvironment
    from longrein.integrations.harbor.ports import SharedLoopback
    from longrein.integrations.harbor.relay import ExecRelay

__all__ = ["BubblewrapEnvironment", "ExecRelay", "HarborBackend", "SharedLoopback"]

_HOMES = {
    "BubblewrapEnvironment": "environment",
    "ExecRelay": "relay",
    "HarborBackend": "backend",
    "SharedLoopback": "ports",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'longrein.integrations.harbor' has no attribute {name!r}")
    return getattr(import_module(f"longrein.integrations.harbor.{_HOMES[name]}"), name)
