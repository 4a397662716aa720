"""What a sandbox is: a private work directory and home, commands that run in it, and nothing left after close."""

from __future__ import annotations

from typing import Protocol

import msgspec

from longrein.types import Finding, Mount


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on everything that runs inside, together."""

    memory_bytes: int = 2 << 30
    """Not below 1.5 GB for node-based agents: OpenCode peaks at 0.57 GB resident and maps far more."""
    pids: int = 512
    cpus: float = 4.0
    """Of processor time in a second; ignored where no cgroup can be written."""
    disk_bytes: int = 4 << 30
    """What the private folders may hold together, and one file may. Whoever makes them hold more is killed."""
    output_bytes: int = 1 << 20
    """The last bytes kept of each of stdout and stderr; what came before is read and dropped."""
    collect_bytes: int = 64 << 20
    """Total file content that :meth:`Sandbox.collect` returns; the rest is named in ``left_out``."""
    collect_entries: int = 20_000
    """Files, symlinks and folders that :meth:`Sandbox.collect` looks at."""


class WorkFile(msgspec.Struct, frozen=True, kw_only=True):
    """One regular file."""

    data: bytes
    executable: bool = False


class WorkTree(msgspec.Struct, frozen=True, kw_only=True):
    """What a work directory holds. All keys are relative POSIX paths."""

    files: dict[str, WorkFile] = {}
    symlinks: dict[str, str] = {}
    """Path -> target, as text; nothing of ours ever follows one."""
    folders: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Work that was not collected: over the limits, unreadable, or with a name that is not UTF-8. The first 1000."""
    special: tuple[str, ...] = ()
    """What holds no work: named pipes, sockets, devices. Never opened, never collected. The first 1000."""


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox starts with."""

    files: dict[str, bytes] = {}
    """Relative path in the work directory -> content."""
    readonly_mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = {}
    loopback_ports: tuple[int, ...] = ()
    """Host loopback ports reachable inside at 127.0.0.1 under the same number. Nothing else is."""
    folders: tuple[str, ...] = ()
    """Private writable folders at absolute paths (``/tests``, ``/logs``). A backend that cannot mount them there
    puts them under a folder it names in the environment variable ``SANDBOX_ROOT`` (unset where they are in place)."""
    limits: SandboxLimits = SandboxLimits()


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. ``exit_code`` is negative for a signal, -9 after a timeout, 127 for no such command."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    findings: tuple[Finding, ...] = ()
    """Limits that it hit, processes that it left behind; as far as the backend can tell."""


class BackgroundProcess(Protocol):
    """A started command. Closing the sandbox kills it and everything it started."""

    async def wait(self, timeout_s: float) -> ExecResult:
        """Wait for the end; past ``timeout_s`` the whole process tree is killed and ``timed_out`` is set."""
        ...

    async def kill(self) -> None:
        """Kill the whole process tree now and wait until it is gone."""
        ...


class Sandbox(Protocol):
    """One private place to work.

    ``workdir`` and ``home`` are paths as seen by commands inside. Relative paths given to :meth:`read` and
    :meth:`write` are relative to ``workdir``; absolute ones must lie in ``home``, ``workdir`` or a declared folder.
    """

    @property
    def workdir(self) -> str:
        """The folder the agent works in, as seen inside."""
        ...

    @property
    def home(self) -> str:
        """The private home, as seen inside."""
        ...

    async def exec(
        self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b"", timeout_s: float
    ) -> ExecResult:
        """Run a command to its end. Raises :class:`~longrein.errors.SandboxError` if it cannot be started at all."""
        ...

    async def start(
        self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b""
    ) -> BackgroundProcess:
        """Start a command and return at once."""
        ...

    async def read(self, path: str) -> bytes:
        """Content of a regular file. Raises ``FileNotFoundError``, also where a symlink is on the way."""
        ...

    async def write(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """Write a file, making its folders."""
        ...

    async def collect(self) -> WorkTree:
        """The content of the work directory. Call it when nothing runs any more."""
        ...

    async def restore(self, tree: WorkTree) -> None:
        """Put a collected tree into the work directory."""
        ...

    async def close(self) -> None:
        """Kill everything and remove everything. Safe to call twice."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes. Picklable: it travels to the spawned rollout worker."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Raises :class:`~longrein.errors.SandboxError` when the sandbox cannot be started."""
        ...
