"""What becomes of containers when their engine fails us. A program stands in for the client: it fails when told to."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from longrein.errors import SandboxError
from longrein.sandboxes.base import SandboxSpec
from longrein.sandboxes.container import ContainerBackend
from tests.sandboxes import container_stand_in


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    program = tmp_path / "engine" / "docker"
    shutil.copy(container_stand_in.__file__, program)
    program.chmod(0o755)
    return program


@pytest.fixture
def backend(docker: Path, root: Path) -> ContainerBackend:
    return ContainerBackend(str(docker), "image", root=str(root))


async def until(what: Path, there: bool = True) -> None:
    async with asyncio.timeout(20):
        while bool(list(what.parent.glob(what.name))) != there:  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.01)


async def test_an_engine_that_fails_once_leaves_no_container(
    backend: ContainerBackend, docker: Path, root: Path
) -> None:
    sandbox = await backend.create(SandboxSpec())
    process = await sandbox.start(("agent",))
    await until(docker.parent / "*.container")
    docker.rename(docker.with_name("away"))
    with pytest.raises(SandboxError, match="failed"):
        await process.kill()
    docker.with_name("away").rename(docker)
    with pytest.raises(SandboxError, match="failed"):
        await sandbox.close()
    assert not list(docker.parent.glob("*.container"))
    assert list(root.iterdir()) == []


async def test_a_container_that_comes_after_its_sandbox_was_given_up_is_removed(
    backend: ContainerBackend, docker: Path, root: Path
) -> None:
    docker.with_name("slow-run").touch()
    creating = asyncio.create_task(backend.create(SandboxSpec(loopback_ports=(4321,))))
    await until(docker.with_name("asked"))
    creating.cancel()
    await asyncio.sleep(0)
    docker.with_name("slow-run").unlink()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert not list(docker.parent.glob("*.container"))
    assert list(root.iterdir()) == []


async def test_an_image_without_a_shell_is_no_agent_without_a_program(docker: Path, root: Path) -> None:
    """Exit code 127 is the agent's only when its container ran."""
    sandbox = await ContainerBackend(str(docker), "no-such-program", root=str(root)).create(SandboxSpec())
    with pytest.raises(SandboxError, match="did not start a container: exec: not found"):
        await sandbox.exec(("agent",), timeout_s=20)
    await sandbox.close()


async def test_a_variable_that_no_shell_can_set_is_refused(backend: ContainerBackend, root: Path) -> None:
    sandbox = await backend.create(SandboxSpec(env={"a-b": "x"}))
    with pytest.raises(SandboxError, match="environment variable 'a-b'"):
        await sandbox.exec(("agent",), timeout_s=20)
    await sandbox.close()
    assert list(root.iterdir()) == []
