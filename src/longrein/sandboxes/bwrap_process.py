"""One command in its own bubblewrap: started, bounded, connected, and ended for certain.

The order of a start, so that at no moment our death leaves something running:

1. bwrap makes the namespaces, tells the pid of the sandbox's init, and waits (``--block-fd``).
2. Limits and the network are put on that init; bwrap goes on.
3. Inside, a line of shell says that it is there. Only now is everything bound to die with its parent.
4. It runs the command when told so, and ends when nobody is left to tell it.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
from contextlib import suppress
from typing import cast

import msgspec

from longrein.errors import SandboxError
from longrein.sandboxes.base import ExecResult
from longrein.sandboxes.cgroups import Cgroup
from longrein.sandboxes.child import Child
from longrein.sandboxes.relay import LoopbackRelay

_START_TIMEOUT_S = 20.0
# Standard input is a socket to us until the command takes over; $0 is what the command gets instead.
_PRELUDE = 'echo >&0; read -r go || exit 125; exec "$@" <"$0"'


class BwrapCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and within which bounds."""

    bwrap: str
    options: list[str]
    prefix: tuple[str, ...]
    """What the sandbox starts with, before the command: the change of user."""
    argv: tuple[str, ...]
    stdin: bytes
    cgroup: Cgroup
    pids: int
    output_bytes: int
    loopback_ports: tuple[int, ...]


class _Channels:
    """What connects us to one bwrap and to the shell inside, besides its output."""

    def __init__(self, options: list[str], stdin: bytes) -> None:
        self.status, self._status_end = os.pipe()
        self._block_end, self._block = os.pipe()
        self.talk, self.talk_end = socket.socketpair()
        self.talk.setblocking(False)
        # Options travel in a file, not in argv: the environment in them holds the session's key.
        self._options = _memory_file("options", b"".join(os.fsencode(option) + b"\0" for option in options))
        os.lseek(self._options, 0, os.SEEK_SET)
        self._stdin = _memory_file("stdin", stdin) if stdin else None

    @property
    def inherited(self) -> tuple[int, ...]:
        ends = (self._status_end, self._block_end, self._options)
        return ends if self._stdin is None else (*ends, self._stdin)

    @property
    def options(self) -> tuple[str, ...]:
        return (
            *("--json-status-fd", str(self._status_end)),
            *("--block-fd", str(self._block_end)),
            *("--args", str(self._options)),
        )

    @property
    def prelude(self) -> tuple[str, ...]:
        stdin = "/dev/null" if self._stdin is None else f"/proc/self/fd/{self._stdin}"
        return ("/bin/sh", "-c", _PRELUDE, stdin)

    def close_inherited(self) -> None:
        for handle in self.inherited:
            os.close(handle)
        self.talk_end.close()

    def unblock(self) -> None:
        os.write(self._block, b"x")

    async def run(self) -> None:
        """Wait for the shell inside, and let it run the command."""
        loop = asyncio.get_running_loop()
        if not await loop.sock_recv(self.talk, 1):
            raise ConnectionError("it ended before its command")
        await loop.sock_sendall(self.talk, b"go\n")

    def close(self) -> None:
        os.close(self._block)
        self._block = -1
        self.talk.close()


def _memory_file(name: str, data: bytes) -> int:
    handle = os.memfd_create(name)
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(data)
    return handle


class BwrapProcess:
    """A :class:`~longrein.sandboxes.base.BackgroundProcess`. The first process inside is the init of a pid
    namespace: when it is killed, the kernel kills everything else in there."""

    def __init__(self, command: BwrapCommand) -> None:
        """Start bwrap, which waits for :meth:`boot` before it runs the command."""
        self._command = command
        self._channels = _Channels(command.options, command.stdin)
        self._relay = LoopbackRelay()
        self._init_pidfd: int | None = None
        try:
            popen = self._popen()
        except OSError as error:
            self._channels.close()
            os.close(self._channels.status)
            raise SandboxError(f"cannot run {command.bwrap}: {error}") from error
        finally:
            self._channels.close_inherited()
        self._child = Child(popen, command.output_bytes, self._end_tree)
        self._init: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._status = asyncio.create_task(self._read_status())

    def _popen(self) -> subprocess.Popen[bytes]:
        command, channels = self._command, self._channels
        return subprocess.Popen(
            [command.bwrap, *channels.options, "--", *command.prefix, *channels.prelude, *command.argv],
            pass_fds=channels.inherited,
            stdin=channels.talk_end.fileno(),
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
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._child.follow()
                await self._bound(await asyncio.shield(self._init))
                await self._channels.run()
        except (OSError, TimeoutError) as error:
            result = await self._child.wait(0.0)
            raise SandboxError(f"the sandbox did not start: {error}; bwrap said: {_last_words(result)}") from error
        except asyncio.CancelledError:
            await self.kill()
            raise

    async def _bound(self, pid: int | None) -> None:
        if pid is None:
            raise SandboxError("bwrap ended before it made a sandbox")
        self._command.cgroup.attach(pid)
        _limit_processes(pid, self._command.pids)
        await self._relay.open(pid, self._command.loopback_ports)
        self._channels.unblock()

    async def wait(self, timeout_s: float) -> ExecResult:
        """See :class:`~longrein.sandboxes.base.BackgroundProcess`."""
        return await self._child.wait(timeout_s)

    async def kill(self) -> None:
        """Kill everything inside and wait until it is gone."""
        await self._child.kill()

    async def _end_tree(self) -> None:
        # Not before bwrap has told its child's pid: an orphan that nobody knows is worse than 10 ms.
        with suppress(TimeoutError, SandboxError):
            await asyncio.wait_for(asyncio.shield(self._init), _START_TIMEOUT_S)
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
            self._channels.close()
            if self._init_pidfd is not None:
                os.close(self._init_pidfd)
                self._init_pidfd = None

    async def _read_status(self) -> None:
        """Read what bwrap reports, to the end. Whatever comes of it, nobody waits for ``_init`` afterwards."""
        try:
            await self._follow_status()
        except (OSError, ValueError, LookupError, TypeError) as error:
            if not self._init.done():
                self._init.set_exception(SandboxError(f"bwrap's report cannot be read: {error!r}"))
        finally:
            if not self._init.done():
                self._init.set_result(None)

    async def _follow_status(self) -> None:
        reader = asyncio.StreamReader()
        pipe = os.fdopen(self._channels.status, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            self._init.set_result(self._remember_init(await reader.readline()))
            await reader.read()
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
