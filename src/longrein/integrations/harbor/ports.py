"""How the gateway on this machine is reached from inside an environment that may be anywhere."""

from __future__ import annotations

from typing import Any, Protocol


class OpenPorts(Protocol):
    """Ports that are reachable now."""

    @property
    def fault(self) -> str:
        """Why they are no longer reachable, where that is not the agent's doing; empty otherwise."""
        ...

    async def close(self) -> None:
        """Make them unreachable, and leave nothing."""
        ...


class PortBridge(Protocol):
    """Makes this machine's loopback ports reachable inside at 127.0.0.1, under the same numbers; picklable."""

    async def open(self, environment: Any, ports: tuple[int, ...]) -> OpenPorts:
        """Called once the environment has started. Raises :class:`~longrein.errors.SandboxError` when it cannot."""
        ...


class SharedLoopback:
    """For environments whose 127.0.0.1 is this machine's, such as a container on the host's network."""

    @property
    def fault(self) -> str:
        """Nothing that could break."""
        return ""

    async def open(self, environment: Any, ports: tuple[int, ...]) -> SharedLoopback:
        """Nothing to do."""
        return self

    async def close(self) -> None:
        """Nothing was opened."""
