"""Any sandbox of OpenEnv's shape (E2B, Hugging Face) as one of ours."""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import secrets
import shlex
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, TypeVar

from longrein.errors import SandboxError
from longrein.sandboxes.base import ExecResult, SandboxSpec, WorkFile, WorkTree
from longrein.sandboxes.closing import close_or_log
from longrein.sandboxes.openenv_shapes import OpenEnvBackend, OpenEnvHandle
from longrein.sandboxes.own_thread import forget, in_own_thread
from longrein.sandboxes.remote_command import RemoteCommand, decoded
from longrein.sandboxes.tarball import pack, packing_script, unpack_compressed, with_status
from longrein.sandboxes.words import require_words

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_MISSING = 44
_LONG_S = 300.0
_FORWARDER_TRIES = 100
_FORWARDER_PAUSE_S = 0.1
# Inside, and only with what every Python has. Connections are few: one call of a model each.
_FORWARDER = """
import socket, sys, threading
def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
open(sys.argv[3], "w").close()
while True:
    inner, _ = server.accept()
    try:
        outer = socket.create_connection((sys.argv[2], int(sys.argv[1])))
    except OSError:
        inner.close()
        continue
    for pair in ((inner, outer), (outer, inner)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


class FromOpenEnv:
    """Makes our sandboxes of OpenEnv's. Picklable where ``backend`` is.

    What such a sandbox isolates, and whether it can limit anything, is its provider's to say; the limits on output
    and collected work are kept here. What a command leaves running lives on until the sandbox is closed, which is
    before the hidden tests appear.

    Args:
        backend: any object with ``create(timeout_s=, envs=, metadata=)``.
        gateway_host: host at which the sandbox reaches our gateway's port. ``127.0.0.1`` says that it shares our
            loopback; anything else is forwarded inside by a small script, which needs ``python3`` there.
        base: folder inside for everything of ours; it is made.
        lifetime_s: what the provider is asked for.
        faults: exceptions of the provider's own that mean a fault of the world, besides ``OSError``,
            ``TimeoutError`` and ``RuntimeError`` (``e2b.SandboxException``, say).
    """

    def __init__(
        self,
        backend: OpenEnvBackend,
        *,
        gateway_host: str = "127.0.0.1",
        base: str = "/tmp/longrein",
        lifetime_s: int = 3600,
        faults: tuple[type[Exception], ...] = (),
    ) -> None:
        self._backend = backend
        self._gateway_host = gateway_host
        self._base = base
        self._lifetime_s = lifetime_s
        self._faults = (OSError, TimeoutError, RuntimeError, *faults)

    async def create(self, spec: SandboxSpec) -> OpenEnvSandbox:
        """Make a sandbox.

        Raises:
            SandboxError: the provider gave none, or it lacks a program that was to be mounted.
        """
        remote = Remote(self._faults)
        metadata = {"longrein": secrets.token_hex(6)}
        handle = await remote.ask(
            lambda: self._backend.create(timeout_s=self._lifetime_s, envs=dict(spec.env) or None, metadata=metadata),
            late=self._end_unused,
        )
        sandbox = OpenEnvSandbox(handle, remote, self._base, spec)
        try:
            await sandbox.prepare(self._gateway_host)
        except BaseException:
            await close_or_log(sandbox)
            raise
        return sandbox

    def _end_unused(self, handle: OpenEnvHandle) -> None:
        """It came when nobody waited for it any more."""
        try:
            handle.kill()
        except self._faults as error:
            _LOG.warning("an unused sandbox %s was not ended: %s", handle.sandbox_id, error)


class Remote:
    """Blocking calls of somebody else's, in threads, their faults as ours."""

    def __init__(self, faults: tuple[type[Exception], ...]) -> None:
        self._faults = faults

    async def ask(self, call: Callable[[], _T], late: Callable[[_T], Any] = forget) -> _T:
        """The answer. ``late`` gets it, in a thread, when we were cancelled before it came.

        Raises:
            SandboxError: the provider failed.
        """
        try:
            return await in_own_thread(call, late)
        except self._faults as error:
            raise SandboxError(f"the sandbox's provider failed: {type(error).__name__}: {error}") from error


class OpenEnvSandbox:
    """One of theirs, with the methods of ours. All its paths lie below ``base``."""

    def __init__(self, handle: OpenEnvHandle, remote: Remote, base: str, spec: SandboxSpec) -> None:
        self._handle = handle
        self._remote = remote
        self._base = base
        self._spec = spec
        self._running: set[RemoteCommand] = set()
        self._closed = False

    @property
    def workdir(self) -> str:
        """The folder the agent works in, as seen inside."""
        return f"{self._base}/work"

    @property
    def home(self) -> str:
        """The private home, as seen inside."""
        return f"{self._base}/home"

    async def prepare(self, gateway_host: str) -> None:
        """Make the folders, write the files, and bring the gateway's port in."""
        for mount in self._spec.readonly_mounts:
            if not await self._remote.ask(lambda target=mount.target: self._handle.exists(target)):
                raise SandboxError(f"{mount.target!r} is not in the provider's image, and nothing can be mounted there")
        folders = (self.workdir, self.home, f"{self._base}/tmp", *(f"{self._base}/root{f}" for f in self._spec.folders))
        await self._shell(f"mkdir -p {shlex.join(folders)}")
        if self._spec.files:
            files = {path: WorkFile(data=data) for path, data in self._spec.files.items()}
            await self.restore(WorkTree(files=files))
        for port in self._spec.loopback_ports:
            if gateway_host != "127.0.0.1":
                await self._forward(port, gateway_host)

    async def exec(
        self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b"", timeout_s: float
    ) -> ExecResult:
        """See :meth:`longrein.sandboxes.base.Sandbox.exec`."""
        process = await self.start(argv, env=env, stdin=stdin)
        try:
            return await process.wait(timeout_s)
        except asyncio.CancelledError:
            # Whoever cancels goes on to read what it left.
            await asyncio.shield(asyncio.create_task(process.kill()))
            raise

    async def start(
        self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b""
    ) -> RemoteCommand:
        """See :meth:`longrein.sandboxes.base.Sandbox.start`."""
        self._require_open()
        require_words(argv, env)
        folder = f"{self._base}/commands/{secrets.token_hex(6)}"
        ours = {"HOME": self.home, "TMPDIR": f"{self._base}/tmp", "SANDBOX_ROOT": f"{self._base}/root"}
        environment = {**ours, **self._spec.env, **(env or {})}
        await self._write(f"{folder}/in", stdin)
        command = RemoteCommand(self._handle, self._remote.ask, folder, self._spec.limits.output_bytes)
        await command.start(argv, environment, self.workdir)
        self._running.add(command)
        return command

    async def read(self, path: str) -> bytes:
        """See :meth:`longrein.sandboxes.base.Sandbox.read`."""
        self._require_open()
        wanted = self._placed(path)
        place, below = shlex.quote(wanted), shlex.quote(wanted.removeprefix(self._base))
        limit = self._spec.limits.collect_bytes
        # What leads to `base` may be a symlink of the provider's; below it none is followed.
        real = (
            f'[ -f {place} ] && [ "$(realpath -e -- {place})" = "$(realpath -e -- {shlex.quote(self._base)})"{below} ]'
        )
        script = f"{real} || exit {_MISSING}; head -c {limit + 1} {place} | base64 -w0"
        result = await self._remote.ask(lambda: self._handle.exec(script, timeout=_LONG_S))
        if result.exit_code == _MISSING:
            raise FileNotFoundError(f"{path}: not a readable file of the sandbox")
        if result.exit_code != 0:
            raise SandboxError(f"{path} could not be read in the sandbox: {result.stderr.strip()[-300:]}")
        data = decoded(result.stdout)
        if len(data) > limit:
            raise SandboxError(f"{path} holds more than {limit} bytes; it is not read")
        return data

    async def write(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """See :meth:`longrein.sandboxes.base.Sandbox.write`."""
        self._require_open()
        await self._write(self._placed(path), data, executable=executable)

    async def collect(self) -> WorkTree:
        """See :meth:`longrein.sandboxes.base.Sandbox.collect`."""
        self._require_open()
        status = f"{self._base}/status"
        # Compressed: what a sandbox says comes as text over somebody's API.
        script = f"{packing_script(shlex.quote(self.workdir), shlex.quote(status), self._spec.limits)}"
        said = await self._shell(f"{script} | gzip -1 | base64 -w0")
        tree = await asyncio.to_thread(unpack_compressed, decoded(said), self._spec.limits)
        return with_status(tree, await self._shell(f"cat {shlex.quote(status)}"))

    async def restore(self, tree: WorkTree) -> None:
        """See :meth:`longrein.sandboxes.base.Sandbox.restore`."""
        self._require_open()
        bundle = f"{self._base}/bundle"
        await self._write(bundle, await asyncio.to_thread(lambda: gzip.compress(pack(tree), 1)))
        await self._shell(f"tar -C {shlex.quote(self.workdir)} -xzf {bundle} && rm {bundle}")

    async def close(self) -> None:
        """End the sandbox, and everything in it. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for command in self._running:
            command.abandon()
        await self._remote.ask(self._handle.kill)

    async def _forward(self, port: int, host: str) -> None:
        script, up = f"{self._base}/forward.py", f"{self._base}/forwarding-{port}"
        await self._write(script, _FORWARDER.encode())
        command = f"exec python3 {shlex.quote(script)} {port} {shlex.quote(host)} {shlex.quote(up)}"
        await self._remote.ask(lambda: self._handle.start_bg(command))
        for _ in range(_FORWARDER_TRIES):
            if await self._remote.ask(lambda: self._handle.exists(up)):
                return
            await asyncio.sleep(_FORWARDER_PAUSE_S)
        raise SandboxError(f"port {port} could not be forwarded in the sandbox; it needs python3, and the port free")

    async def _write(self, path: str, data: bytes, *, executable: bool = False) -> None:
        place, text = shlex.quote(path), shlex.quote(f"{path}.base64")
        await self._remote.ask(lambda: self._handle.write_text(f"{path}.base64", base64.b64encode(data).decode()))
        mode = "0755" if executable else "0644"
        await self._shell(f"rm -f {place} && base64 -d {text} > {place} && rm {text} && chmod {mode} {place}")

    async def _shell(self, script: str) -> str:
        result = await self._remote.ask(lambda: self._handle.exec(script, timeout=_LONG_S))
        if result.exit_code != 0:
            raise SandboxError(f"in the sandbox, `{script[:80]}` failed: {result.stderr.strip()[-300:]}")
        return result.stdout

    def _placed(self, path: str) -> str:
        wanted = PurePosixPath(self.workdir) / path
        declared = any(wanted.is_relative_to(folder) for folder in self._spec.folders)
        placed = PurePosixPath(f"{self._base}/root{wanted}") if declared else wanted
        if ".." in placed.parts or not placed.is_relative_to(self._base):
            raise SandboxError(f"{path!r} lies in no private folder of the sandbox")
        return str(placed)

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed; make a new one")
