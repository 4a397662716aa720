"""Sandboxes as containers of docker or podman, through the ordinary client: the programs of an image, no network."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
from pathlib import Path

from longrein.errors import SandboxError
from longrein.sandboxes.base import SandboxLimits, SandboxSpec, WorkFile
from longrein.sandboxes.bwrap_options import HOME, TMP, WORKDIR, base_environment, check_mounts
from longrein.sandboxes.closing import close_or_log
from longrein.sandboxes.container_client import ContainerClient, reap_containers_once
from longrein.sandboxes.container_process import ContainerCommand, ContainerProcess
from longrein.sandboxes.disk import DiskWatch
from longrein.sandboxes.folder_sandbox import FolderSandbox
from longrein.sandboxes.identity import new_owner
from longrein.sandboxes.layout import Layout, remove_tree
from longrein.sandboxes.leftovers import reap_once
from longrein.sandboxes.owner import own_name
from longrein.sandboxes.relay import LoopbackRelay
from longrein.sandboxes.session_root import session_root
from longrein.sandboxes.shell_exports import exports
from longrein.sandboxes.tree import Owner
from longrein.sandboxes.words import require_words

_ENVIRONMENT = "/.longrein-environment"
# A shell is the first process: it reaps orphans, and signals to the command mean what they mean elsewhere.
_PRELUDE = f'. {_ENVIRONMENT}; exec 4>&2 2>/dev/null; (exec "$@") 2>&4 4>&-; exit $?'
_BACKUP_PROCESSES = 16
_NETWORK_HOLDER = ("/bin/sh", "-c", "while :; do sleep 3600; done")


class ContainerBackend:
    """Makes sandboxes out of an image. Picklable.

    Files are shared by bind mounts, and the gateway's port by entering the container's network namespace: the engine
    has to run on this machine, and we have to be root or use podman as ourselves.

    Args:
        client: ``docker``, ``podman`` or a path.
        image: what the client calls it; it must hold ``/bin/sh`` and ``sleep``.
        root: host folder for the sandboxes' private folders; by default one for each user in the system's
            temporary folder.
    """

    def __init__(self, client: str, image: str, root: str = "") -> None:
        self._client = ContainerClient(client)
        self._image = image
        self._root = root

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when no sandbox could be made."""
        self._client.check(self._image)

    async def create(self, spec: SandboxSpec) -> ContainerSandbox:
        """Make a sandbox; no command runs in it yet.

        Raises:
            SandboxError: no place on the disk, a mount that cannot work, or the engine starts no container.
        """
        root = session_root(self._root)
        reap_once(root)
        await asyncio.to_thread(reap_containers_once, self._client.program)
        private = (WORKDIR, HOME, TMP, *spec.folders)
        check_mounts(spec.readonly_mounts, private)
        session = root / own_name()
        owner = new_owner()
        try:
            session.mkdir(mode=0o700)
            layout = Layout.make(session, WORKDIR, private, owner)
            for path, data in spec.files.items():
                layout.work.write(path, WorkFile(data=data))
        except OSError as error:
            remove_tree(session)
            raise SandboxError(f"no sandbox could be made in {root}: {error}") from error
        sandbox = ContainerSandbox(self._client, self._image, layout, owner, spec)
        try:
            await sandbox.connect()
        except BaseException:
            await close_or_log(sandbox)
            raise
        return sandbox


class ContainerSandbox(FolderSandbox[ContainerProcess]):
    """Private folders on the host; each command runs in a container of its own over them.

    Commands share files and the loopback network, on which the listed ports are, but no processes.
    """

    def __init__(self, client: ContainerClient, image: str, layout: Layout, owner: Owner, spec: SandboxSpec) -> None:
        super().__init__(layout, HOME, spec.limits)
        self._client = client
        self._image = image
        self._owner = owner
        self._spec = spec
        self._name = layout.session.name
        self._numbers = itertools.count()
        self._relay = LoopbackRelay()
        folders = tuple(tree.path for tree in layout.trees.values())
        self._disk = DiskWatch(folders, spec.limits.disk_bytes, set)
        self._watching: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Hold a network namespace in which the listed ports are. Nothing to do where none is listed."""
        if not self._spec.loopback_ports:
            return
        argv = self._client.run_argv(
            f"{self._name}-net",
            self._name,
            ["--detach", "--network", "none", *_walls(self._spec.limits, self._owner)],
            self._image,
            _NETWORK_HOLDER,
        )
        await self._client.start(argv)
        state = await self._client.state(f"{self._name}-net")
        if not state.pid:
            raise SandboxError(f"the image {self._image!r} cannot run `sleep`; use one with a shell and coreutils")
        await self._relay.open(state.pid, self._spec.loopback_ports)

    async def start(
        self, argv: tuple[str, ...], *, env: dict[str, str] | None = None, stdin: bytes = b""
    ) -> ContainerProcess:
        """See :meth:`longrein.sandboxes.base.Sandbox.start`."""
        self._require_open()
        require_words(argv, env)
        number = next(self._numbers)
        environment = self._layout.session / f"environment-{number}"
        self._write_environment(environment, env or {})
        name = f"{self._name}-{number}"
        command = ContainerCommand(
            client=self._client,
            name=name,
            argv=self._client.run_argv(
                name,
                self._name,
                self._options(environment, bool(stdin)),
                self._image,
                ("/bin/sh", "-c", _PRELUDE, "sh", *argv),
            ),
            environment=environment,
            stdin=stdin,
            output_bytes=self._spec.limits.output_bytes,
            found=lambda: self._disk.findings,
        )
        if self._watching is None:
            self._watching = asyncio.create_task(self._disk.run(self._kill_all))
        process = ContainerProcess(command)
        self._running.add(process)
        try:
            await process.follow()
        except asyncio.CancelledError:
            await process.kill()
            raise
        return process

    async def _close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._relay.close()
        await super()._close()

    async def _remove(self) -> None:
        try:
            await self._client.remove_all(self._name)
        finally:
            await asyncio.to_thread(remove_tree, self._layout.session)

    def _write_environment(self, path: Path, env: dict[str, str]) -> None:
        """A file and not the command line, which the whole machine can read: the session's key is in it."""
        variables = {**base_environment(HOME, TMP), **self._spec.env, **env}
        if "PATH" not in {**self._spec.env, **env}:
            del variables["PATH"]  # the image knows better
        lines = exports(variables)
        path.touch(mode=0o600)
        path.write_text(lines)
        os.chown(path, self._owner.uid, self._owner.gid)

    def _options(self, environment: Path, with_stdin: bool) -> list[str]:
        shared = f"container:{self._name}-net" if self._spec.loopback_ports else "none"
        options = ["--network", shared, *_walls(self._spec.limits, self._owner), "--workdir", WORKDIR]
        options += ["--interactive"] if with_stdin else []
        options += ["--userns", "keep-id"] if self._client.is_rootless_podman else []
        binds = [f"{tree.path}:{inside}" for inside, tree in self._layout.trees.items()]
        binds += [f"{Path(mount.source).resolve()}:{mount.target}:ro" for mount in self._spec.readonly_mounts]
        binds.append(f"{environment}:{_ENVIRONMENT}:ro")
        return [*options, *(option for bind in binds for option in ("--volume", bind))]


def _walls(limits: SandboxLimits, owner: Owner) -> list[str]:
    """Options that hold for every container."""
    options = ["--pull", "never", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    options += ["--user", f"{owner.uid}:{owner.gid}"]
    options += ["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)]
    options += ["--pids-limit", str(limits.pids), "--cpus", f"{limits.cpus:.3f}"]
    options += ["--ulimit", f"fsize={limits.disk_bytes}:{limits.disk_bytes}", "--ulimit", "core=0:0"]
    # The engine's own defaults may be more than we may give.
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    options += ["--ulimit", f"nofile={files}:{files}"] if files != resource.RLIM_INFINITY else []
    if owner.uid != os.getuid():  # processes are counted for each user, and this one has no others
        options += ["--ulimit", f"nproc={limits.pids + _BACKUP_PROCESSES}:{limits.pids + _BACKUP_PROCESSES}"]
    return options
