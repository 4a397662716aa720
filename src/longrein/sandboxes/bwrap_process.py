"""One command in its own bubblewrap: started, bounded, connected, and ended for certain.

The order of a start, so that at no moment our death leaves a command running:

1. bwrap makes the namespaces, tells the pid of the sandbox's init, and waits (``--block-fd``).
2. Limits and the network are put on that init; bwrap goes on.
3. Inside, a line of shell says that it is there. Only now is everything bound to die with its parent.
4. It runs the command when told so, and ends when nobody is left to tell it.

One gap is bwrap's own: killed between the two halves of step 1, it leaves that init waiting for it, for ever, with
nothing in it yet. It still has the name that bwrap was called by, and the next start kills it by that.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import msgspec

from longrein.errors import SandboxError
from longrein.sandboxes.base import ExecResult, SandboxLimits
from longrein.sandboxes.bwrap_channels import Channels
from longrein.sandboxes.cgroups import Cgroup, counts_processes
from longrein.sandboxes.child import Child
from longrein.sandboxes.leftovers import processes_left
from longrein.sandboxes.relay import LoopbackRelay
from longrein.types import Finding

_START_TIMEOUT_S = 20.0
_BACKUP_PROCESSES = 16


class BwrapCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and within which bounds."""

    bwrap: str
    called: str
    """What ``bwrap`` calls itself in the list of processes: a path in the session's folder, by which it is found."""
    options: list[str]
    prefix: tuple[str, ...]
    """What the sandbox starts with, before the command: the change of user."""
    argv: tuple[str, ...]
    stdin: bytes
    cgroup: Cgroup
    limits: SandboxLimits
    seccomp: bytes
    """A filter of system calls; empty for none."""
    loopback_ports: tuple[int, ...]
    found: Callable[[], tuple[Finding, ...]]
    """What the sandbox as a whole has to say when the command ended: limits that were hit."""


class BwrapProcess:
    """A :class:`~longrein.sandboxes.base.BackgroundProcess`. The first process inside is the init of a pid
    namespace: when it is killed, the kernel kills everything else in there."""

    def __init__(self, command: BwrapCommand) -> None:
        """Start bwrap, which waits for :meth:`boot` before it runs the command."""
        self._command = command
        try:
            self._channels = Channels(command.options, command.stdin, command.seccomp)
        except SandboxError:
            raise
        except OSError as error:
            raise SandboxError(f"there is no room for another sandbox: {error}") from error
        self._relay = LoopbackRelay()
        self._init_pidfd: int | None = None
        self._left: tuple[str, ...] = ()
        try:
            popen = self._popen()
        except OSError as error:
            self._channels.close()
            os.close(self._channels.status)
            raise SandboxError(f"cannot run {command.bwrap}: {error}") from error
        finally:
            self._channels.close_inherited()
        self._child = Child(popen, command.limits.output_bytes, self._end_tree, self._found)
        self._init: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._status = asyncio.create_task(self._read_status())

    def _popen(self) -> subprocess.Popen[bytes]:
        command, channels = self._command, self._channels
        return subprocess.Popen(
            [command.called, *channels.options, "--", *command.prefix, *channels.prelude, *command.argv],
            executable=command.bwrap,
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
        _limit(pid, self._command.limits)
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
            self._left = self._channels.left_running()
        finally:
            self._relay.close()
            self._channels.close()
            if self._init_pidfd is not None:
                os.close(self._init_pidfd)
                self._init_pidfd = None

    def _found(self) -> tuple[Finding, ...]:
        return (*self._command.found(), *processes_left(self._left))

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


def _limit(pid: int, limits: SandboxLimits) -> None:
    # Processes are counted by the kernel for each user in each user namespace: for each sandbox, here. Where a cgroup
    # counts them too, that one comes first, since it tells afterwards.
    _lower(pid, resource.RLIMIT_NPROC, limits.pids + (_BACKUP_PROCESSES if counts_processes() else 0))
    _lower(pid, resource.RLIMIT_FSIZE, limits.disk_bytes)
    _lower(pid, resource.RLIMIT_CORE, 0)


def _lower(pid: int, what: int, limit: int) -> None:
    _, hard = resource.prlimit(pid, what)
    bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.prlimit(pid, what, (bound, bound))


def _last_words(result: ExecResult) -> str:
    return result.stderr.decode(errors="replace").strip()[-500:] or f"nothing (exit code {result.exit_code})"
