"""Commands one after another in one sandbox process, so that what one leaves running is there for the next.

A sandbox of ours gives each command namespaces of its own; Harbor's agents start a ``tmux`` or a server with one
command and use it with later ones, as in a container. So one process stays, and starts every command.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shlex
import time
from collections.abc import Mapping

from longrein.errors import SandboxError
from longrein.sandboxes.base import ExecResult, Sandbox
from longrein.sandboxes.shell_exports import exports

FOLDER = "/var/lib/longrein-shell"
"""A private folder that the sandbox must have been made with."""
_POLL_S = 0.02
_KILL_S = 5.0
_FOR_EVER_S = 30 * 86_400.0
_LOOP = """
cd "$1" || exit 1
while :; do
  for asked in *.ask; do
    [ -e "$asked" ] || continue
    id="${asked%.ask}"; rm -f "$asked"
    ( setsid bash "$id.sh" >"$id.out" 2>"$id.err" </dev/null & echo $! >"$id.pid"
      wait $!; echo $? >"$id.end"; for said in out err; do tail -c "$2" "$id.$said" >"$id.$said.kept"; done
      mv "$id.end" "$id.rc" ) &
  done
  for killed in *.kill; do
    # Its pid is not written yet where its time was over before it had begun: it is looked for again.
    id="${killed%.kill}"; [ -s "$id.pid" ] || continue
    rm -f "$killed"; pid="$(cat "$id.pid")"
    kill -KILL -- "-$pid" 2>/dev/null || kill -KILL "$pid"
  done
  sleep 0.03
done
"""


class Shell:
    """Starts commands in ``sandbox``, whose :data:`FOLDER` is private to it.

    Args:
        sandbox: where they run. Closing it ends everything.
        output_bytes: the last bytes of each of stdout and stderr that are kept.
    """

    def __init__(self, sandbox: Sandbox, output_bytes: int) -> None:
        self._sandbox = sandbox
        self._output_bytes = output_bytes
        self._numbers = itertools.count()
        self._loop: asyncio.Task[ExecResult] | None = None

    async def open(self) -> None:
        """Start the process that starts all others. Raises ``SandboxError`` when it cannot be started."""
        process = await self._sandbox.start(("bash", "-c", _LOOP, "bash", FOLDER, str(self._output_bytes)))
        self._loop = asyncio.create_task(process.wait(_FOR_EVER_S))

    async def run(self, command: str, *, cwd: str, env: Mapping[str, str], timeout_s: float) -> ExecResult:
        """Run a ``bash`` command to its end. What it left in the background goes on.

        Past ``timeout_s`` its process group is killed and ``timed_out`` is set.

        Raises:
            SandboxError: the sandbox is closed, or an earlier command killed the process that starts commands.
        """
        name = f"{FOLDER}/{next(self._numbers)}"
        await self._sandbox.write(f"{name}.sh", _script(command, cwd, env).encode())
        await self._sandbox.write(f"{name}.ask", b"")
        code = await self._ended(name, timeout_s)
        timed_out = code is None
        if timed_out:
            await self._sandbox.write(f"{name}.kill", b"")
            await self._ended(name, _KILL_S)
        return ExecResult(
            exit_code=-9 if code is None else int(code),
            stdout=await self._said(f"{name}.out.kept"),
            stderr=await self._said(f"{name}.err.kept"),
            timed_out=timed_out,
        )

    async def close(self) -> None:
        """Forget the process; the sandbox's own end is what ends it."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})

    async def _ended(self, name: str, timeout_s: float) -> bytes | None:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            with contextlib.suppress(FileNotFoundError):
                return await self._sandbox.read(f"{name}.rc")
            if self._loop is None or self._loop.done():
                raise SandboxError(
                    "the process that starts commands is gone; a command has killed it, or the sandbox ended"
                )
            await asyncio.sleep(_POLL_S)
        return None

    async def _said(self, path: str) -> bytes:
        try:
            return await self._sandbox.read(path)
        except FileNotFoundError:
            return b""


def _script(command: str, cwd: str, env: Mapping[str, str]) -> str:
    return f"{exports(env)}cd -- {shlex.quote(cwd)} || exit 1\nexec bash -c {shlex.quote(command)}\n"
