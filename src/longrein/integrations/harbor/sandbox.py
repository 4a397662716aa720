"""One of Harbor's environments as a sandbox: files travel as archives, commands as ``bash`` lines."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import shutil
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec.structs import replace

from longrein.errors import SandboxError
from longrein.integrations.harbor.archives import pack_folder
from longrein.integrations.harbor.faults import provider
from longrein.integrations.harbor.ports import OpenPorts
from longrein.sandboxes.base import ExecResult, SandboxSpec, WorkTree
from longrein.sandboxes.tarball import pack, packing_script, unpack, with_status
from longrein.sandboxes.words import require_words

WORKDIR = "/workdir"
HOME = "/tmp/longrein-home"
_MARK = "LONGREIN_EXEC"
_TIMED_OUT = (124, 137)
_SLACK_S = 60
_OWN_TIMEOUT_S = 600
_FOR_EVER_S = 7 * 86_400.0
_LAST_SIGNAL = 64
_MISSING = 44
_TOO_LARGE = 45
_SWEEP_PAUSE_S = 0.5


def paths_of(home: str) -> dict[str, str]:
    """The variables that keep a program's own files in its home."""
    return {"HOME": home, "XDG_CONFIG_HOME": f"{home}/.config", "XDG_DATA_HOME": f"{home}/.local/share"}


class HarborSandbox:
    """See :class:`longrein.sandboxes.base.Sandbox`. Made by :class:`~longrein.integrations.harbor.HarborBackend`."""

    def __init__(self, environment: Any, spec: SandboxSpec, folder: Path) -> None:
        self._environment = environment
        self._spec = spec
        self._folder = folder
        self._ports: list[OpenPorts] = []
        self._running: set[asyncio.Task[ExecResult]] = set()
        self._closing: asyncio.Task[None] | None = None

    @property
    def workdir(self) -> str:
        """The folder the agent works in, as seen inside."""
        return WORKDIR

    @property
    def home(self) -> str:
        """The private home, as seen inside."""
        return HOME

    async def prepare(self) -> None:
        """Make folders, copy mounts and files. Raises ``SandboxError``."""
        folders = " ".join(map(shlex.quote, (WORKDIR, HOME, *self._spec.folders)))
        await self._demand(f"mkdir -p {folders}")
        for mount in self._spec.readonly_mounts:
            source = Path(mount.source)
            if source.is_dir():
                await self._unpack(await asyncio.to_thread(pack_folder, source), mount.target)
            else:
                await self.write(mount.target, source.read_bytes(), executable=bool(source.stat().st_mode & 0o111))
        for path, data in self._spec.files.items():
            await self.write(path, data)

    def closes(self, ports: OpenPorts) -> None:
        """Have :meth:`close` close these, too."""
        self._ports.append(ports)

    async def exec(
        self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b"", timeout_s: float
    ) -> ExecResult:
        """See :meth:`longrein.sandboxes.base.Sandbox.exec`; what it left running is killed as far as it can be told."""
        return await self._marked(secrets.token_hex(8), argv, env or {}, stdin, timeout_s)

    async def start(
        self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b""
    ) -> HarborProcess:
        """See :meth:`longrein.sandboxes.base.Sandbox.start`."""
        mark = secrets.token_hex(8)
        running = asyncio.create_task(self._marked(mark, argv, env or {}, stdin, _FOR_EVER_S))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return HarborProcess(running, lambda: self._sweep(mark))

    async def read(self, path: str) -> bytes:
        """See :meth:`longrein.sandboxes.base.Sandbox.read`."""
        inside, limit = shlex.quote(_absolute(path)), self._spec.limits.collect_bytes
        plain = f'[ -f {inside} ] && [ "$(realpath -e -- {inside})" = {inside} ] || exit {_MISSING}'
        found = await self._run(f'{plain}; [ "$(stat -c %s -- {inside})" -le {limit} ] || exit {_TOO_LARGE}')
        if found.return_code == _MISSING:
            raise FileNotFoundError(f"{path} is no regular file in the sandbox, or a symlink is on the way")
        if found.return_code == _TOO_LARGE:
            raise SandboxError(f"{path} holds more than {limit} bytes; it is not read")
        return await self._download(_absolute(path))

    async def write(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """See :meth:`longrein.sandboxes.base.Sandbox.write`."""
        inside = _absolute(path)
        await self._demand(f"mkdir -p {shlex.quote(str(PurePosixPath(inside).parent))}")
        await self._upload(data, inside)
        await self._demand(f"chmod {'755' if executable else '644'} {shlex.quote(inside)}")

    async def collect(self) -> WorkTree:
        """See :meth:`longrein.sandboxes.base.Sandbox.collect`.

        Raises:
            SandboxError: a connection to the gateway broke while the agent worked, so that its work says nothing.
        """
        for fault in [ports.fault for ports in self._ports]:
            if fault:
                raise SandboxError(f"the gateway's port was lost inside the environment: {fault}")
        archive = _archive_path()
        # Bounded there: neither its disk nor ours is the agent's to fill.
        await self._demand(f"{packing_script(WORKDIR, f'{archive}.status', self._spec.limits)} > {archive}")
        data = await self._download(archive)
        status = await self._download(f"{archive}.status")
        await self._demand(f"rm -f {archive} {archive}.status")
        return with_status(await asyncio.to_thread(unpack, data, self._spec.limits), status.decode(errors="replace"))

    async def restore(self, tree: WorkTree) -> None:
        """See :meth:`longrein.sandboxes.base.Sandbox.restore`."""
        await self._unpack(await asyncio.to_thread(pack, tree), WORKDIR)

    async def close(self) -> None:
        """Delete the environment. Safe to call twice, and not undone by cancellation."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, *(ports.close() for ports in self._ports), return_exceptions=True)
        try:
            with provider("deleting it"):
                await self._environment.stop(delete=True)
        finally:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _marked(
        self, mark: str, argv: tuple[str, ...], env: dict[str, str], stdin: bytes, timeout_s: float
    ) -> ExecResult:
        require_words(argv, env)
        source = "/dev/null"
        if stdin:
            source = f"/tmp/.longrein-stdin-{mark}"
            await self._upload(stdin, source)
        # timeout(1) is the environment's own clock; ours stands behind it in case that is gone.
        line = shlex.join(("env", f"{_MARK}={mark}", "timeout", "-k", "2", f"{timeout_s}s", *argv))
        started_s = time.monotonic()
        result = await self._run(f"{line} <{source}", env=env, timeout_s=timeout_s)
        took_s = time.monotonic() - started_s
        await self._sweep(mark)
        timed_out = result.return_code in _TIMED_OUT and took_s >= timeout_s
        kept = self._spec.limits.output_bytes
        return ExecResult(
            exit_code=-9 if timed_out else _exit_code(result.return_code),
            stdout=(result.stdout or "").encode()[-kept:],
            stderr=(result.stderr or "").encode()[-kept:],
            timed_out=timed_out,
        )

    async def _sweep(self, mark: str) -> None:
        """Kill what carries the mark of a command. A process that took it off is not found."""
        found = f"grep -lz '^{_MARK}={mark}$' /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"
        await self._run(f"for id in $({found}); do kill -KILL $id; done; rm -f /tmp/.longrein-stdin-{mark}")

    async def _unpack(self, data: bytes, target: str) -> None:
        archive, inside = _archive_path(), shlex.quote(target)
        await self._upload(data, archive)
        await self._demand(f"mkdir -p {inside} && tar -xf {archive} -C {inside} --no-same-owner && rm -f {archive}")

    async def _upload(self, data: bytes, target: str) -> None:
        with tempfile.NamedTemporaryFile(dir=self._folder) as file, provider(f"writing {target}"):
            file.write(data)
            file.flush()
            await self._environment.upload_file(Path(file.name), target)

    async def _download(self, source: str) -> bytes:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, provider(f"reading {source}"):
            target = Path(folder, "file")
            await self._environment.download_file(source, target)
            return target.read_bytes()

    async def _run(self, command: str, *, env: dict[str, str] | None = None, timeout_s: float = _OWN_TIMEOUT_S) -> Any:
        if self._closing is not None:
            raise SandboxError("the sandbox is closed; make a new one")
        with provider("running a command"):
            return await self._environment.exec(
                command, cwd=WORKDIR if env is not None else "/", env=env, timeout_sec=int(timeout_s) + _SLACK_S
            )

    async def _demand(self, command: str) -> None:
        result = await self._run(command)
        if result.return_code:
            said = (result.stderr or result.stdout or "").strip()
            raise SandboxError(
                f"in Harbor's environment, {command[:200]!r} failed with {result.return_code}: {said[-500:]}"
            )


class HarborProcess:
    """See :class:`longrein.sandboxes.base.BackgroundProcess`."""

    def __init__(self, running: asyncio.Task[ExecResult], sweep: Any) -> None:
        self._running = running
        self._sweep = sweep

    async def wait(self, timeout_s: float) -> ExecResult:
        """See :meth:`longrein.sandboxes.base.BackgroundProcess.wait`."""
        done, _ = await asyncio.wait({self._running}, timeout=timeout_s)
        if not done:
            await self.kill()
        if self._running.cancelled():  # with its sandbox
            return ExecResult(exit_code=-9, stdout=b"", stderr=b"", timed_out=not done)
        result = self._running.result()
        return result if done else replace(result, exit_code=-9, timed_out=True)

    async def kill(self) -> None:
        """See :meth:`longrein.sandboxes.base.BackgroundProcess.kill`."""
        # Again and again: it may not have started yet.
        while not self._running.done():
            await self._sweep()
            await asyncio.wait({self._running}, timeout=_SWEEP_PAUSE_S)


def _absolute(path: str) -> str:
    return str(PurePosixPath(WORKDIR) / path)


def _archive_path() -> str:
    return f"/tmp/.longrein-{secrets.token_hex(8)}.tar"


def _exit_code(code: int) -> int:
    """A shell says 128 + n for a command that signal n ended."""
    return 128 - code if 128 < code <= 128 + _LAST_SIGNAL else code
