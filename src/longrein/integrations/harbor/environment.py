"""A Harbor environment on our bubblewrap sandbox: Harbor runs its trials on a machine without containers."""

# Harbor is untyped here, see imported.py.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from longrein.errors import SandboxError
from longrein.integrations.harbor.archives import pack_folder, unpack_folder
from longrein.integrations.harbor.imported import harbor_module
from longrein.integrations.harbor.shell import FOLDER, Shell
from longrein.sandboxes.base import Sandbox, SandboxLimits, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.bwrap_options import TMP, WORKDIR
from longrein.tasks.harbor import CONTAINER_FILES

HARBOR_FOLDERS = ("/logs", "/tests", "/solution", "/installed-agent", "/runtime")
"""Where Harbor and its agents put what they bring."""
_LOG_FOLDERS = "/logs/agent /logs/verifier /logs/artifacts"
_NO_TIMEOUT_S = 7 * 86_400.0
_COLLECT_BYTES = 1 << 30
_OWN_TIMEOUT_S = 600.0
_DOCKERFILE_WORKDIR = re.compile(r"^\s*WORKDIR\s+(/\S*)\s*$", re.MULTILINE | re.IGNORECASE)

# Explicitly Any: a class that is only known where Harbor is.
BaseEnvironment: Any = harbor_module("environments.base").BaseEnvironment


class BubblewrapEnvironment(BaseEnvironment):
    """Commands see this machine's ``/usr``, read-only, and private folders; no container image, and no network at all.

    A task's Dockerfile is not built: its last absolute ``WORKDIR`` is the work directory, the other files of
    ``environment/`` are put there, and the rest is ignored with a warning. Users named to :meth:`exec` are ignored,
    since there is one. Memory is limited where cgroups can be written.

    Args:
        folders: more private, writable folders, as absolute paths that are not below ``/usr``.
        loopback_ports: ports of the host's loopback to show at 127.0.0.1 inside.
        args, kwargs: Harbor's.
    """

    def __init__(
        self, *args: Any, folders: Sequence[str] = (), loopback_ports: Sequence[int] = (), **kwargs: Any
    ) -> None:
        self._extra_folders = tuple(folders)
        self._loopback_ports = tuple(loopback_ports)
        self._sandbox: Sandbox | None = None
        self._shell: Shell | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """Harbor's name for it."""
        return "longrein-bubblewrap"

    @property
    def capabilities(self) -> Any:
        """No network, and nothing else that is special."""
        return harbor_module("environments.capabilities").EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> Any:
        """Memory can be a ceiling."""
        return harbor_module("environments.capabilities").EnvironmentResourceCapabilities(memory_limit=True)

    @property
    def workdir(self) -> str:
        """Where commands run: the task's own, else its Dockerfile's, else ours."""
        dockerfile = self.environment_dir / "Dockerfile"
        text = dockerfile.read_text() if dockerfile.is_file() else ""
        return str(PurePosixPath(self.task_env_config.workdir or (_DOCKERFILE_WORKDIR.findall(text) or [WORKDIR])[-1]))

    def _validate_definition(self) -> None:
        """Harbor's hook. Raises ``ValueError`` for a task of several containers."""
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise ValueError(f"{self.environment_dir}: {self.type()} runs no containers, so no docker-compose.yaml")
        if self.network_policy.network_mode.value == "public":
            self.logger.warning("%s has no network; the task's network_mode 'public' is not given", self.type())
        image = self.task_env_config.docker_image or (self.environment_dir / "Dockerfile").is_file()
        if image:
            self.logger.warning("%s: no image is built or pulled; the task runs on this machine's system", self.type())

    async def start(self, force_build: bool) -> None:
        """Make the sandbox and put the task's files into it.

        Raises:
            SandboxError: no bubblewrap here, or a folder that cannot be private.
        """
        memory_mb = self._effective_memory_mb
        limits = SandboxLimits(collect_bytes=_COLLECT_BYTES)
        if memory_mb is not None:
            limits = SandboxLimits(collect_bytes=_COLLECT_BYTES, memory_bytes=memory_mb << 20)
        own = () if self.workdir == WORKDIR else (self.workdir,)
        spec = SandboxSpec(
            folders=(*HARBOR_FOLDERS, FOLDER, *own, *self._extra_folders),
            loopback_ports=self._loopback_ports,
            limits=limits,
        )
        self._sandbox = await BubblewrapBackend().create(spec)
        self._shell = Shell(self._sandbox, limits.output_bytes)
        await self._shell.open()
        await self._demand(f"mkdir -p {_LOG_FOLDERS} && chmod 777 {_LOG_FOLDERS}")
        if self.environment_dir.is_dir():
            await self._unpack(pack_folder(self.environment_dir, without=CONTAINER_FILES), self.workdir)

    async def stop(self, delete: bool) -> None:
        """Kill and remove everything, whether or not asked to delete. Safe to call twice."""
        shell, sandbox, self._shell, self._sandbox = self._shell, self._sandbox, None, None
        if shell is not None:
            await shell.close()
        if sandbox is not None:
            await sandbox.close()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> Any:
        """Run a bash command; Harbor's ``ExecResult``.

        Raises:
            RuntimeError: it ran past ``timeout_sec``, or the sandbox is not running.
        """
        if self._shell is None:
            raise RuntimeError(f"{self.type()}: start() the environment first")
        result = await self._shell.run(
            command,
            cwd=cwd or self.workdir,
            env=self._merge_env(env) or {},
            timeout_s=_NO_TIMEOUT_S if timeout_sec is None else float(timeout_sec),
        )
        stdout, stderr = (said.decode(errors="replace") for said in (result.stdout, result.stderr))
        tell = self._output_callback()
        for name, text in (("stdout", stdout), ("stderr", stderr)):
            if tell is not None and text:
                await tell(text, name)
        if result.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        made = harbor_module("environments.base").ExecResult
        return made(stdout=stdout or None, stderr=stderr or None, return_code=result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into a private folder. Raises ``SandboxError`` for a target that lies in none."""
        source = Path(source_path)
        executable = bool(source.stat().st_mode & 0o111)
        await self._running().write(target_path, source.read_bytes(), executable=executable)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a folder's content into a private folder. Raises ``SandboxError`` for a target that lies in none."""
        await self._unpack(pack_folder(Path(source_dir)), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out. Raises ``FileNotFoundError`` where there is none, or a symlink on the way."""
        data = await self._running().read(source_path)
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        Path(target_path).write_bytes(data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder's content out; nothing is written outside ``target_dir``."""
        archive = _archive_path()
        # tar exits 1 for a file that changed while it was read; the archive is whole all the same.
        await self._demand(f"tar -cf {archive} -C {shlex.quote(source_dir)} . || [ $? -eq 1 ]")
        unpack_folder(await self._running().read(archive), Path(target_dir))
        await self._demand(f"rm -f {archive}")

    async def reset_dirs(
        self, *, remove_dirs: Sequence[Any], create_dirs: Sequence[Any], chmod_dirs: Sequence[Any] | None = None
    ) -> Any:
        """As Harbor's, but private folders are emptied: they are mounts, which cannot be removed."""
        emptied = [f"find {shlex.quote(str(path))} -mindepth 1 -delete 2>/dev/null" for path in remove_dirs]
        made = [f"mkdir -p {' '.join(shlex.quote(str(path)) for path in create_dirs)}"] if create_dirs else ["true"]
        opened = [f"chmod 777 {' '.join(shlex.quote(str(path)) for path in chmod_dirs)}"] if chmod_dirs else []
        return await self.exec("; ".join([*emptied, " && ".join([*made, *opened])]))

    async def _unpack(self, data: bytes, target_dir: str) -> None:
        archive, target = _archive_path(), shlex.quote(target_dir)
        await self._running().write(archive, data)
        unpack = f"mkdir -p {target} && tar -xf {archive} -C {target} --no-same-owner"
        await self._demand(f"{unpack}; code=$?; rm -f {archive}; exit $code")

    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError(f"{self.type()}: start() the environment first")
        return self._sandbox

    async def _demand(self, command: str) -> None:
        """Run a command of ours that must not fail; without the task's own variables."""
        assert self._shell is not None
        result = await self._shell.run(command, cwd=self.workdir, env={}, timeout_s=_OWN_TIMEOUT_S)
        if result.exit_code:
            said = (result.stderr or result.stdout).decode(errors="replace").strip()
            raise SandboxError(f"{self.type()}: {command[:200]!r} failed with {result.exit_code}: {said[-500:]}")


def _archive_path() -> str:
    return f"{TMP}/.longrein-{secrets.token_hex(8)}.tar"
