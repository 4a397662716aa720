"""One command in a container of its own: when it ends or is killed, so does everything in there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

from longrein.errors import SandboxError
from longrein.sandboxes.base import ExecResult
from longrein.sandboxes.child import Child, stdin_file
from longrein.sandboxes.container_client import ContainerClient, ContainerState
from longrein.types import Finding

_ENGINE_FAILED = (125, 126, 127)
"""The client's own exit codes (126 and 127: the image has no shell that runs); a command may have the same."""


class ContainerCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    client: ContainerClient
    name: str
    argv: list[str]
    """Command line of the client."""
    environment: Path
    """File with the command's environment, for its eyes only."""
    stdin: bytes
    output_bytes: int
    found: Callable[[], tuple[Finding, ...]]
    """What the sandbox as a whole has to say when the command ended."""


class ContainerProcess:
    """A :class:`~longrein.sandboxes.base.BackgroundProcess`."""

    def __init__(self, command: ContainerCommand) -> None:
        self._command = command
        self._state = ContainerState()
        try:
            with stdin_file(command.stdin) as file:
                popen = subprocess.Popen(
                    command.argv, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
                )
        except OSError as error:
            raise SandboxError(f"cannot run {command.argv[0]}: {error}") from error
        self._child = Child(popen, command.output_bytes, self._end_tree, self._found)

    async def follow(self) -> None:
        """Read its output from now on."""
        await self._child.follow()

    async def wait(self, timeout_s: float) -> ExecResult:
        """See :class:`~longrein.sandboxes.base.BackgroundProcess`.

        Raises:
            SandboxError: the engine could not start it.
        """
        result = await self._child.wait(timeout_s)
        if result.exit_code in _ENGINE_FAILED and not self._state.ran:
            said = result.stderr.decode(errors="replace").strip()[-500:]
            raise SandboxError(f"{self._command.client.program} did not start a container: {said}")
        return result

    async def kill(self) -> None:
        """Kill everything in the container and wait until it is gone."""
        await self._child.kill()

    async def _end_tree(self) -> None:
        try:
            self._state = await self._command.client.state(self._command.name)
        finally:
            try:
                await self._command.client.remove(self._command.name)
            finally:
                self._child.kill_first()
                self._command.environment.unlink(missing_ok=True)

    def _found(self) -> tuple[Finding, ...]:
        memory = Finding(kind="memory_limit", detail="processes of the container were killed for want of memory")
        return (*self._command.found(), *((memory,) if self._state.killed_for_memory else ()))
