"""The ordinary client of a container engine, ``docker`` or ``podman``, asked as a process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import subprocess
from functools import cache

import msgspec

from longrein.errors import ConfigError, SandboxError
from longrein.sandboxes.owner import owner_is_dead

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 120.0
_LABEL = "longrein.sandbox"
_REMOVE_ROUNDS = 3


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine says about a container; all zero for one that it does not know."""

    pid: int = 0
    """Of its first process, on the host; 0 when it does not run."""
    ran: bool = False
    """Its command was started."""
    killed_for_memory: bool = False


class ContainerClient:
    """``docker`` or ``podman``. Picklable.

    Args:
        program: name or path of the client. How it reaches its engine is for its own configuration to say.
    """

    def __init__(self, program: str) -> None:
        self.program = program

    @property
    def is_rootless_podman(self) -> bool:
        """Whether containers live in a user namespace that we own."""
        return os.path.basename(self.program).startswith("podman") and os.geteuid() != 0  # noqa: PTH119 - a name

    def check(self, image: str) -> None:
        """See that it is there, reaches its engine and has the image.

        Raises:
            ConfigError: what is missing.
        """
        if shutil.which(self.program) is None:
            raise ConfigError(f"no {self.program} on the PATH; install it, or choose another sandbox.backend")
        answer = self._ask("image", "inspect", image)
        if answer.returncode != 0:
            said = answer.stderr.decode(errors="replace").strip()[-300:]
            raise ConfigError(
                f"{self.program} cannot use image {image!r}: {said}. Start its engine, and pull or import the image"
            )

    def run_argv(self, name: str, session: str, options: list[str], image: str, argv: tuple[str, ...]) -> list[str]:
        """The command line that runs ``argv`` in a container called ``name`` of the sandbox ``session``."""
        label = f"{_LABEL}={session}"
        # The shell is the image's: an entry point of its own would come before our command.
        return [
            self.program,
            "run",
            "--name",
            name,
            "--label",
            label,
            *options,
            "--entrypoint",
            argv[0],
            image,
            *argv[1:],
        ]

    async def start(self, argv: list[str]) -> None:
        """Run a command line of :meth:`run_argv` that detaches. On return, or when cancelled, nothing comes any more.

        Raises:
            SandboxError: it did not start.
        """
        asked = asyncio.create_task(asyncio.to_thread(self._ask, *argv[1:]))
        try:
            answer = await asyncio.shield(asked)
        except asyncio.CancelledError:
            # What the engine is just making can only be removed once it is there.
            await asyncio.wait({asked})
            raise
        if answer.returncode != 0:
            said = answer.stderr.decode(errors="replace").strip()[-500:]
            raise SandboxError(f"{self.program} did not start a container: {said}")

    async def state(self, name: str) -> ContainerState:
        """What became of a container."""
        answer = await asyncio.to_thread(self._ask, "inspect", "--format", "{{json .State}}", name)
        if answer.returncode != 0:
            return ContainerState()
        state = json.loads(answer.stdout)
        return ContainerState(
            pid=int(state.get("Pid") or 0),
            ran=not str(state.get("StartedAt", "0001")).startswith("0001"),
            killed_for_memory=bool(state.get("OOMKilled")),
        )

    async def remove(self, *names: str) -> None:
        """Kill and remove containers. Those already gone are fine."""
        await asyncio.to_thread(self._remove, names)

    async def remove_all(self, session: str) -> None:
        """Kill and remove every container of a sandbox, one that is just being made too."""
        await asyncio.to_thread(self._remove_all, session)

    def reap_leftovers(self) -> tuple[str, ...]:
        """Remove the containers of dead owners; the names of their sandboxes."""
        answer = self._ask("ps", "-a", "--filter", f"label={_LABEL}", "--format", "{{.Names}}")
        # A container is called as its sandbox, and a number.
        sessions = {name.rpartition("-")[0] for name in answer.stdout.decode().split()}
        dead = sorted(session for session in sessions if owner_is_dead(session))
        for session in dead:
            self._remove_all(session)
        return tuple(dead)

    def _remove_all(self, session: str) -> None:
        for _ in range(_REMOVE_ROUNDS):
            answer = self._ask("ps", "-a", "--quiet", "--filter", f"label={_LABEL}={session}")
            names = tuple(answer.stdout.decode().split())
            if not names:
                return
            self._remove(names)
        _LOG.warning("containers of the closed sandbox %s are still there", session)

    def _remove(self, names: tuple[str, ...]) -> None:
        self._ask("kill", "--signal", "KILL", *names)  # podman's rm would first ask politely, for ten seconds
        self._ask("rm", "--force", "--volumes", *names)

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                [self.program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxError(f"{self.program} {arguments[0]} failed: {error}") from error


@cache
def reap_containers_once(program: str) -> None:
    """Remove what dead owners left, once for each process."""
    ContainerClient(program).reap_leftovers()
