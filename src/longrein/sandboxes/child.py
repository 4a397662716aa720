"""One started command: its output, its end, and the end of everything it started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from typing import IO

from longrein.sandboxes.base import ExecResult
from longrein.sandboxes.tail import Tail
from longrein.types import Finding

_DRAIN_S = 1.0
_POLL_S = 0.02


def stdin_file(data: bytes) -> IO[bytes]:
    """Standard input as a file: agents hang on a pipe that nobody closes. Empty input is ``/dev/null``."""
    if not data:
        return open(os.devnull, "rb")  # noqa: PTH123 - not a path, a device; the caller closes it
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(data)
    file.seek(0)
    return file


async def exit_of(popen: subprocess.Popen[bytes]) -> int:
    """Wait for a child of ours without a thread; works on any event loop."""
    if not hasattr(os, "pidfd_open"):
        while popen.poll() is None:  # noqa: ASYNC110 - the system has no event for it
            await asyncio.sleep(_POLL_S)
        return popen.wait()
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    pidfd = os.pidfd_open(popen.pid)
    try:
        loop.add_reader(pidfd, lambda: None if ended.done() else ended.set_result(None))
        await ended
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    return popen.wait()


class Child:
    """A started command.

    Args:
        popen: the process, not yet read from.
        output_bytes: the last bytes kept of each of its outputs.
        end_tree: kills everything it started and returns when all of that is gone.
        found: what there is to say about it then.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        output_bytes: int,
        end_tree: Callable[[], Awaitable[None]],
        found: Callable[[], tuple[Finding, ...]],
    ) -> None:
        self._popen = popen
        self._found = found
        self._output_bytes = output_bytes
        self._end_tree = end_tree
        self._tails: list[Tail] = []
        self._exit = asyncio.create_task(exit_of(popen))
        self._ending: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        """Start to read the output. Once, right after the start."""
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                self._tails.append(await Tail.follow(pipe, self._output_bytes))

    async def wait(self, timeout_s: float) -> ExecResult:
        """Wait for the end; on return nothing of it runs, however it ended."""
        timed_out = False
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._exit)
        except TimeoutError:
            timed_out = True
        finally:
            await self.kill()
        code = -signal.SIGKILL if timed_out else _signed(self._exit.result())
        return ExecResult(
            exit_code=code,
            stdout=self._output(0),
            stderr=self._output(1),
            timed_out=timed_out,
            findings=self._found(),
        )

    async def kill(self) -> None:
        """Kill the whole tree and wait until it is gone. Safe to call twice, and survives cancellation."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    def kill_first(self) -> None:
        """Kill the process we started itself, and no other."""
        self._popen.kill()

    async def exited(self) -> int:
        """The exit code of the process we started itself."""
        return await asyncio.shield(self._exit)

    def _output(self, index: int) -> bytes:
        return self._tails[index].data if index < len(self._tails) else b""

    async def _end(self) -> None:
        await self._end_tree()
        await self._exit
        if self._tails:
            await asyncio.wait([tail.ended for tail in self._tails], timeout=_DRAIN_S)
        for tail in self._tails:
            tail.stop()
        for pipe in (self._popen.stdout, self._popen.stderr)[len(self._tails) :]:
            if pipe is not None:
                pipe.close()


def _signed(code: int) -> int:
    """Shells and bwrap report death by signal n as 128 + n."""
    return 128 - code if 128 < code <= 128 + signal.NSIG else code
