"""What a harness is: the recipe that starts one kind of agent on one task against one endpoint."""

from __future__ import annotations

from typing import Protocol

from longrein.types import Endpoint, Launch, Task


class Harness(Protocol):
    """A recipe for an agent. Picklable, and pure: :meth:`launch` starts nothing and reads nothing of the session."""

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        ...

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the agent is not installed, saying how to install it."""
        ...

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """Command line, environment, files and mounts for this task. Paths beginning with ``$HOME`` or
        ``$WORKDIR`` are resolved by the session."""
        ...
