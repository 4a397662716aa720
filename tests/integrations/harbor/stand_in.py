"""The part of Harbor's ``BaseEnvironment`` that our sandbox uses, for a Python that Harbor is not for.

Commands really run, in a bubblewrap of ours. ``make test-harbor`` runs the same tests on Harbor's own class.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from longrein.integrations.harbor.sandbox import WORKDIR
from longrein.integrations.harbor.shell import FOLDER, Shell
from longrein.sandboxes.base import Sandbox, SandboxLimits, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend


class Result(msgspec.Struct):
    """Harbor's ``ExecResult``."""

    stdout: str | None
    stderr: str | None
    return_code: int


class StandIn:
    def __init__(self, sandbox: Sandbox, shell: Shell) -> None:
        self.sandbox = sandbox
        self.shell = shell
        self.stopped = False

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> Result:
        result = await self.shell.run(command, cwd=cwd or WORKDIR, env=env or {}, timeout_s=timeout_sec or 60)
        if result.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return Result(result.stdout.decode() or None, result.stderr.decode() or None, result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self.sandbox.write(target_path, Path(source_path).read_bytes())

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).write_bytes(await self.sandbox.read(source_path))

    async def stop(self, delete: bool) -> None:
        assert delete
        self.stopped = True


@asynccontextmanager
async def stand_in(*folders: str) -> AsyncIterator[StandIn]:
    limits = SandboxLimits()
    sandbox = await BubblewrapBackend().create(SandboxSpec(folders=(FOLDER, *folders), limits=limits))
    shell = Shell(sandbox, limits.output_bytes)
    try:
        await shell.open()
        yield StandIn(sandbox, shell)
    finally:
        await shell.close()
        await sandbox.close()
