"""One command in its own bubblewrap: started, bounded, connected, and ended for certain."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
from contextlib import suppress
from typing import IO, cast

import msgspec

from longrein.errors import SandboxError
from longrein.sandboxes.base import ExecResult
from longrein.sandboxes.cgroups import Cgroup
from longrein.sandboxes.child import Child, stdin_file
from longrein.sandboxes.relay import LoopbackRelay

_START_TIMEOUT_S = 20.0
_NO_SUCH_COMMAND = 127


class BwrapCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and within which bounds."""

    bwrap: str
    options: list[str]
    argv: tuple[str, ...]
    stdin: bytes
    cgroup: Cgroup
    pids: int
    output_bytes: int
    loopback_ports: tuple[int, ...]


class _Pipes:
    """The channels to bwrap besides the standard ones: it reports its state, and waits for our go."""

    def __init__(self, options: list[str]) -> None:
        self.status, self._status_end = os.pipe()
        self._go_end, self._go = os.pipe()
        # Options travel in a file, not in argv: the environment in them holds the session's key.
        self._options = os.memfd_create("options")
        os.write(self._options, b"\0".join(os.fsencode(option) for option in options) + b"\0")
        os.lseek(self._options, 0, os.SEEK_SET)

    @property
    def inherited(self) -> tuple[int, ...]:
        return (self._status_end, self._go_end, self._options)

    @property
    def options(self) -> tuple[str, ...]:
        status, go, options = map(str, self.inherited)
        return ("--json-status-fd", status, "--block-fd", go, "--args", options)

    def close_inherited(self) -> None:
        for handle in self.inherited:
            os.close(handle)

    def go(self) -> None:
        os.write(self._go, b"x")

    def close(self) -> None:
        os.close(self._go)
        self._go = -1


class BwrapProcess:
    """A :class:`~longrein.sandboxes.base.BackgroundProcess`. The first process inside is the init of a pid
    namespace: when it is killed, the kernel kills everything else in there."""

    def __init__(self, command: BwrapCommand) -> None:
        """Start bwrap, which waits for :meth:`boot` before it runs the command."""
        self._command = command
        self._pipes = _Pipes(command.options)
        self._relay = LoopbackRelay()
        self._init_pidfd: int | None = None
        try:
            with stdin_file(command.stdin) as stdin:
                popen = self._popen(stdin)
        except OSError as error:
            self._pipes.close()
            os.close(self._pipes.status)
            raise SandboxError(f"cannot run {command.bwrap}: {error}") from error
        finally:
            self._pipes.close_inherited()
        self._child = Child(popen, command.output_bytes, self._end_tree)
        self._first_status: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._status = asyncio.create_task(self._read_status())

    def _popen(self, stdin: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._command.bwrap, *self._pipes.options, "--", *self._command.argv],
            pass_fds=self._pipes.inherited,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            bufsize=0,
        )

    async def boot(self) -> None:
        """Limits, network, go.

        Raises:
            SandboxError: bwrap could not set the sandbox up; nothing of it is left.
        """
        try:
            await self._child.follow()
            pid = await asyncio.wait_for(asyncio.shield(self._first_status), _START_TIMEOUT_S)
            if pid is None:
                raise SandboxError("bwrap ended before it made a sandbox")
            self._command.cgroup.attach(pid)
            _limit_processes(pid, self._command.pids)
            await self._relay.open(pid, self._command.loopback_ports)
            self._pipes.go()
        except (OSError, TimeoutError) as error:
            result = await self._ended()
            raise SandboxError(f"the sandbox did not start: {error}; bwrap said: {_last_words(result)}") from error
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def wait(self, timeout_s: float) -> ExecResult:
        """See :class:`~longrein.sandboxes.base.BackgroundProcess`.

        Raises:
            SandboxError: the sandbox failed before the command ran.
        """
        result = await self._child.wait(timeout_s)
        if await self._status or result.timed_out or result.exit_code < 0:
            return result
        if b"bwrap: execvp" in result.stderr:
            return msgspec.structs.replace(result, exit_code=_NO_SUCH_COMMAND)
        raise SandboxError(f"the sandbox failed before its command ran; bwrap said: {_last_words(result)}")

    async def kill(self) -> None:
        """Kill everything inside and wait until it is gone."""
        await self._child.kill()

    async def _ended(self) -> ExecResult:
        return await self._child.wait(0.0)

    async def _end_tree(self) -> None:
        # Not before bwrap has told its child's pid: an orphan that nobody knows is worse than 10 ms.
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._first_status), _START_TIMEOUT_S)
        try:
            if self._init_pidfd is None:
                self._child.kill_first()
            else:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
            # bwrap ends when its child is reaped, that is when the whole pid namespace is empty.
            await self._child.exited()
            await self._status
        finally:
            self._relay.close()
            self._pipes.close()
            if self._init_pidfd is not None:
                os.close(self._init_pidfd)
                self._init_pidfd = None

    async def _read_status(self) -> bool:
        """Read what bwrap reports to the end; true if the command itself ran to an exit code."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(self._pipes.status, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            first = await reader.readline()
            self._first_status.set_result(self._remember_init(first))
            return b"exit-code" in await reader.read()
        finally:
            transport.close()

    def _remember_init(self, status: bytes) -> int | None:
        if not status:
            return None
        pid = cast(int, json.loads(status)["child-pid"])
        try:
            self._init_pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        return pid


def _limit_processes(pid: int, limit: int) -> None:
    """Counted by the kernel for each user in each user namespace: for each sandbox, here. Backs up the cgroup."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
    bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.prlimit(pid, resource.RLIMIT_NPROC, (bound, bound))


def _last_words(result: ExecResult) -> str:
    return result.stderr.decode(errors="replace").strip()[-500:] or f"nothing (exit code {result.exit_code})"
