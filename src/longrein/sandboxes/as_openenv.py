"""Our sandboxes in OpenEnv's shapes, for whatever asks for a ``SandboxBackend``."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from longrein.errors import SandboxError
from longrein.sandboxes.base import BackgroundProcess, Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from longrein.sandboxes.shell_exports import exports
from longrein.types import Mount

_T = TypeVar("_T")
_POLL_S = 0.02
_START_TIMEOUT_S = 30.0
_KILLED = 137
# The one command of the sandbox: commands of theirs see each other's processes and ports, ours would not. Each is a
# file that we write; an empty one beside it says that it is whole.
_SUPERVISOR = """
cd "$1" && : > ready
while :; do
    for found in *.cmd; do
        [ -e "$found" ] || continue
        name=${found%.cmd}
        rm "$found"
        setsid sh -c 'echo $$ > "$0.pid"; sh "$0.run" > "$0.out" 2> "$0.err" < /dev/null
            echo $? > "$0.part"; mv "$0.part" "$0.code"' "$PWD/$name" &
    done
    for found in *.kill; do
        [ -e "$found" ] || continue
        kill -s KILL -- "-$(cat "${found%.kill}.pid")"
        echo 137 > "${found%.kill}.code"
        rm "$found"
    done
    sleep 0.02
done
"""


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


class AsOpenEnv:
    """Makes OpenEnv's sandboxes of ours.

    Args:
        backend: ours.
        limits: of each sandbox.
        loopback_ports: host ports that sandboxes reach at 127.0.0.1; nothing else of the network is there.
        readonly_mounts: host folders that they show.
    """

    def __init__(
        self,
        backend: SandboxBackend,
        *,
        limits: SandboxLimits | None = None,
        loopback_ports: tuple[int, ...] = (),
        readonly_mounts: tuple[Mount, ...] = (),
    ) -> None:
        self._backend = backend
        self._limits = limits or SandboxLimits()
        self._loopback_ports = loopback_ports
        self._readonly_mounts = readonly_mounts

    def create(
        self, *, timeout_s: int = 900, envs: dict[str, str] | None = None, metadata: dict[str, str] | None = None
    ) -> Handle:
        """A sandbox that ends after ``timeout_s`` seconds at the latest. ``metadata`` is nobody's business here.

        Raises:
            SandboxError: it cannot be started.
        """
        spec = SandboxSpec(
            env=dict(envs or {}),
            limits=self._limits,
            loopback_ports=self._loopback_ports,
            readonly_mounts=self._readonly_mounts,
        )
        return Handle(self._backend, spec, float(timeout_s))


class _Loop:
    """An event loop in a thread of its own, for callers that have none."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="longrein-sandbox", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run it there and wait for it."""
        return self.start(work).result()

    def start(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run it there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class Handle:
    """A ``SandboxHandle``: one sandbox of ours with one command in it, which runs theirs."""

    def __init__(self, backend: SandboxBackend, spec: SandboxSpec, lifetime_s: float) -> None:
        self.sandbox_id = f"longrein-{secrets.token_hex(6)}"
        self._output_bytes = spec.limits.output_bytes
        self._loop = _Loop()
        self._lock = threading.Lock()
        self._alive = True
        try:
            self._sandbox: Sandbox = self._loop.run(backend.create(spec))
        except BaseException:
            self._loop.close()
            raise
        self._control = f"{self._sandbox.home}/.longrein"
        try:
            process = self._loop.run(self._supervise(lifetime_s))
            self._ended = self._loop.start(process.wait(lifetime_s + _START_TIMEOUT_S))
        except BaseException:
            self.kill()
            raise

    def exec(
        self, cmd: str, *, envs: dict[str, str] | None = None, cwd: str | None = None, timeout: float | None = 60
    ) -> ExecResult:
        """Run a shell command. Past ``timeout`` seconds it is killed and has exit code 137."""
        job = self.start_bg(cmd, envs=envs, cwd=cwd)
        try:
            code = job.wait(timeout)
        except TimeoutError:
            job.kill()
            code = _KILLED
        return ExecResult(exit_code=code, stdout=job.text("out"), stderr=job.text("err"))

    def start_bg(self, cmd: str, *, envs: dict[str, str] | None = None, cwd: str | None = None) -> Job:
        """Start a shell command."""
        name = secrets.token_hex(6)
        script = f"{exports(envs or {})}cd {shlex.quote(cwd or self._sandbox.workdir)} || exit 1\n{cmd}\n"
        self.write_bytes(f"{self._control}/{name}.run", script.encode())
        self.write_bytes(f"{self._control}/{name}.cmd", b"")
        return Job(self, f"{self._control}/{name}")

    def write_text(self, path: str, content: str) -> None:
        """Write a file, making its folders, with the rights of a command.

        Raises:
            SandboxError: it cannot be written.
        """
        copy = f"{self._control}/{secrets.token_hex(6)}.data"
        self.write_bytes(copy, content.encode())
        place = shlex.quote(path)
        result = self.exec(
            f'mkdir -p -- "$(dirname -- {place})" && cat {copy} > {place}; code=$?; rm {copy}; exit $code'
        )
        if result.exit_code != 0:
            raise SandboxError(f"{path} cannot be written in the sandbox: {result.stderr.strip()}")

    def read_text(self, path: str) -> str:
        """Read a file, with the rights of a command. Raises ``FileNotFoundError``."""
        copy = f"{self._control}/{secrets.token_hex(6)}.data"
        if self.exec(f"cat -- {shlex.quote(path)} > {copy}").exit_code != 0:
            raise FileNotFoundError(f"{path}: not a readable file of the sandbox")
        data = self.read_bytes(copy)
        self.exec(f"rm {copy}")
        return data.decode(errors="replace")

    def exists(self, path: str) -> bool:
        """Whether there is something, as a command would see it."""
        return self.exec(f"test -e {shlex.quote(path)}").exit_code == 0

    def kill(self) -> None:
        """End the sandbox. Safe to call twice."""
        with self._lock:
            if not self._alive:
                return
            self._alive = False
        try:
            self._loop.run(self._sandbox.close())
        finally:
            self._loop.close()

    def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file in a private folder, from outside."""
        self._require_alive()
        self._loop.run(self._sandbox.write(path, data))

    def read_bytes(self, path: str) -> bytes:
        """Read a file in a private folder, from outside. Raises ``FileNotFoundError``."""
        self._require_alive()
        return self._loop.run(self._sandbox.read(path))

    @property
    def output_bytes(self) -> int:
        """What is kept of an output."""
        return self._output_bytes

    async def _supervise(self, lifetime_s: float) -> BackgroundProcess:
        await self._sandbox.write(f"{self._control}/supervisor.sh", _SUPERVISOR.encode())
        argv = ("sh", f"{self._control}/supervisor.sh", self._control)
        process = await self._sandbox.start(("timeout", "-s", "KILL", f"{lifetime_s:.0f}", *argv))
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while not await self._is_there(f"{self._control}/ready"):  # noqa: ASYNC110 - a file tells nobody
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise SandboxError(f"the sandbox's first command was not up within {_START_TIMEOUT_S:g} s") from error
        return process

    async def _is_there(self, path: str) -> bool:
        try:
            await self._sandbox.read(path)
        except FileNotFoundError:
            return False
        return True

    def _require_alive(self) -> None:
        if not self._alive or self._ended.done():
            raise SandboxError(f"sandbox {self.sandbox_id} was killed, or its time is over; make a new one")


class Job:
    """A ``BgJob``."""

    def __init__(self, handle: Handle, path: str) -> None:
        self._handle = handle
        self._path = path

    @property
    def pid(self) -> int:
        """As the sandbox counts; waits until it has started."""
        return int(self._first("pid", _START_TIMEOUT_S))

    def wait(self, timeout: float | None = None) -> int:
        """Exit code.

        Raises:
            TimeoutError: it ran on past ``timeout`` seconds.
        """
        return int(self._first("code", timeout))

    def kill(self) -> None:
        """End it and what it started, unless that left its session. Done on return."""
        if self.pid and not self._read("code"):
            self._handle.write_bytes(f"{self._path}.kill", b"")
            self.wait(_START_TIMEOUT_S)

    def text(self, name: str) -> str:
        """The end of what it said so far: ``out`` or ``err``."""
        kept, path = self._handle.output_bytes, f"{self._path}.{name}"
        try:
            data = self._handle.read_bytes(path)
        except SandboxError:  # more than is read at once
            self._handle.start_bg(f"tail -c {kept} {path} > {path}.tail").wait(_START_TIMEOUT_S)
            data = self._handle.read_bytes(f"{path}.tail")
        return data[-kept:].decode(errors="replace")

    def _first(self, name: str, timeout_s: float | None) -> bytes:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            data = self._read(name)
            if data.endswith(b"\n"):
                return data
            if until_s is not None and time.monotonic() >= until_s:
                raise TimeoutError(f"the command in {self._handle.sandbox_id} did not end within {timeout_s} s")
            time.sleep(_POLL_S)

    def _read(self, name: str) -> bytes:
        try:
            return self._handle.read_bytes(f"{self._path}.{name}")
        except FileNotFoundError:
            return b""
