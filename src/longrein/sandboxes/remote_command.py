"""One command in a sandbox that only knows shell lines and text: started, waited for, killed."""

from __future__ import annotations

import asyncio
import base64
import shlex
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from longrein.errors import SandboxError
from longrein.sandboxes.base import ExecResult
from longrein.sandboxes.openenv_shapes import OpenEnvHandle, OpenEnvJob

_QUICK_S = 60.0
_POLL_S = 30.0
_CLOSED = ExecResult(exit_code=-signal.SIGKILL, stdout=b"", stderr=b"")


class RemoteCommand:
    """A :class:`~longrein.sandboxes.base.BackgroundProcess` with its input and output in files of one folder inside.

    Args:
        handle: the sandbox.
        ask: runs a blocking call of the provider's; and another on its result, if it comes when nobody waits any more.
        folder: with a file ``in``, its standard input.
        output_bytes: the last bytes that are read of each of its outputs.
    """

    def __init__(
        self, handle: OpenEnvHandle, ask: Callable[..., Awaitable[Any]], folder: str, output_bytes: int
    ) -> None:
        self._handle = handle
        self._ask = ask
        self._folder = folder
        self._output_bytes = output_bytes
        self._job: OpenEnvJob | None = None
        self._result: ExecResult | None = None

    async def start(self, argv: tuple[str, ...], env: dict[str, str], workdir: str) -> None:
        """Start it in a process group of its own."""
        inner = f"echo $$ > {self._folder}/pid; cd {shlex.quote(workdir)} && exec {shlex.join(argv)}"
        # `exec` of a missing program ends the shell with 127, as it should.
        outer = f"setsid sh -c {shlex.quote(inner)} < {self._folder}/in > {self._folder}/out 2> {self._folder}/err"
        self._job = await self._ask(lambda: self._handle.start_bg(f"{outer}; exit $?", envs=env), _end_job)

    async def wait(self, timeout_s: float) -> ExecResult:
        """See :class:`~longrein.sandboxes.base.BackgroundProcess`."""
        if self._result is None:
            code = await self._exit_code(timeout_s)
            if self._result is None:  # nobody killed it meanwhile
                self._result = await self._ended(code)
        return self._result

    async def kill(self) -> None:
        """Kill its process group."""
        if self._result is None:
            await self._end()
            self._result = _CLOSED

    def abandon(self) -> None:
        """The sandbox is being closed with everything in it."""
        self._result = self._result or _CLOSED

    async def _exit_code(self, timeout_s: float) -> int | None:
        """``None`` when it ran past its time."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        job = self._job
        while job is not None and self._result is None:
            patience_s = max(0.0, min(_POLL_S, until_s - loop.time()))
            try:
                # The job's TimeoutError is our own question's answer, and no fault.
                return _as_code(await self._ask(partial(_waited, job, patience_s)))
            except _RunsOnError:
                if loop.time() >= until_s:
                    return None
        return None

    async def _ended(self, code: int | None) -> ExecResult:
        if code is None:
            await self._end()
        out, err = await self._tail("out"), await self._tail("err")
        if code is None:
            return ExecResult(exit_code=-signal.SIGKILL, stdout=out, stderr=err, timed_out=True)
        return ExecResult(exit_code=128 - code if 128 < code <= 128 + signal.NSIG else code, stdout=out, stderr=err)

    async def _end(self) -> None:
        # Its number is written by itself, a moment after its start.
        number = f"{self._folder}/pid"
        there = f"for i in 1 2 3 4 5 6 7 8 9; do [ -s {number} ] && break; sleep 0.1; done"
        line = f'{there}; kill -s KILL -- "-$(cat {number})"'
        await self._ask(lambda: self._handle.exec(line, timeout=_QUICK_S))
        if self._job is not None:
            await self._ask(self._job.kill)

    async def _tail(self, name: str) -> bytes:
        line = f"tail -c {self._output_bytes} {self._folder}/{name} | base64 -w0"
        result = await self._ask(lambda: self._handle.exec(line, timeout=_QUICK_S))
        try:
            return decoded(result.stdout) if result.exit_code == 0 else b""
        except SandboxError:
            # An agent may replace the programs of such a sandbox; what it says then is its own affair.
            return b""


def _end_job(job: OpenEnvJob) -> None:
    """It began when nobody waited for it any more."""
    job.kill()


def decoded(text: str) -> bytes:
    """What a sandbox said in base64. The programs that say it are the sandbox's, where an agent may have put its own.

    Raises:
        SandboxError: it is no base64.
    """
    try:
        return base64.b64decode(text)
    except (ValueError, TypeError) as error:
        raise SandboxError(f"the sandbox sent no base64: {error}") from error


def _as_code(said: Any) -> int:
    if isinstance(said, int):
        return said
    raise SandboxError(f"the sandbox's provider gave {type(said).__name__} for an exit code")


class _RunsOnError(Exception):
    """The job has not ended yet."""


def _waited(job: OpenEnvJob, patience_s: float) -> int:
    try:
        return job.wait(timeout=patience_s)
    except TimeoutError as error:
        raise _RunsOnError from error
