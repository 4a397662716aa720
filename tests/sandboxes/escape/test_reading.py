"""Read what is not the agent's: host files, our run directory, another session's files, the environment of others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longrein.sandboxes.base import SandboxBackend, SandboxSpec
from tests.sandboxes.escape.attack import attempt, program, wins

READ = """
    return b"s3cret" in open(os.environ["TARGET"], "rb").read()
"""
THROUGH_OTHERS = """
    for root in ["/proc/1/root", *glob.glob("/proc/*/root"), *glob.glob("/proc/*/cwd")]:
        try:
            if b"s3cret" in open(root + os.environ["TARGET"], "rb").read():
                return True
        except OSError:
            pass
    return False
"""
ENVIRONMENTS = """
    for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        if str(os.getpid()) in path:
            continue
        try:
            if b"k3y-of-" + b"somebody" in open(path, "rb").read():
                return True
        except OSError:
            pass
    return False
"""
SEARCH = """
    for folder in (os.environ["TARGET"], "/tmp", "/work", "/root", "/home", "/var"):
        for at, _, names in os.walk(folder):
            for name in names:
                if name == "answer-of-a-sibling.txt":
                    return b"s3cret" in open(os.path.join(at, name), "rb").read()
            if at.count("/") > 8:
                break
    return False
"""
BY_DESCRIPTOR = """
    for fd in range(3, 256):
        try:
            os.fstat(fd)
        except OSError:
            continue
        target = os.readlink(f"/proc/self/fd/{fd}")
        if target.startswith("/") and os.path.isdir(f"/proc/self/fd/{fd}"):
            return True
    return False
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "rollouts" / "000001.parquet"
    path.parent.mkdir(parents=True)
    path.write_text("s3cret")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("body", [READ, THROUGH_OTHERS], ids=["by its path", "through the root of a process"])
async def test_files_of_the_host(plain: SandboxBackend, walled: SandboxBackend, secret: Path, body: str) -> None:
    """The run directory, keys in a home, ``/etc/shadow``: files of ours that are nobody else's business."""
    env = {"TARGET": str(secret)}
    assert await wins(plain, body, env=env)
    assert not await wins(walled, body, env=env)


async def test_etc_shadow(plain: SandboxBackend, walled: SandboxBackend) -> None:
    body = 'return b"root:" in open("/etc/shadow", "rb").read()'
    if os.getuid() == 0:
        assert await wins(plain, body)
    assert not await wins(walled, body)


@pytest.fixture
def process_with_a_key() -> Iterator[None]:
    """The agent of another session, say."""
    code = "print('up', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={"OPENAI_API_KEY": "k3y-of-somebody"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield
    process.communicate(b"\n")


async def test_the_environment_of_other_processes(
    plain: SandboxBackend, walled: SandboxBackend, process_with_a_key: None
) -> None:
    assert await wins(plain, ENVIRONMENTS)
    assert not await wins(walled, ENVIRONMENTS)


@pytest.mark.parametrize("kind", ["plain", "walled"])
async def test_files_of_another_session(request: pytest.FixtureRequest, kind: str, root: Path) -> None:
    backend: SandboxBackend = request.getfixturevalue(kind)
    sibling = await backend.create(SandboxSpec(files={"answer-of-a-sibling.txt": b"s3cret"}))
    try:
        target = f"{root}-plain" if kind == "plain" else str(root)
        assert await wins(backend, SEARCH, env={"TARGET": target}) == (kind == "plain")
    finally:
        await sibling.close()


async def test_folders_that_somebody_left_open(walled: SandboxBackend, tmp_path: Path) -> None:
    """Control: the same look finds a folder that was passed on purpose."""
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        control = subprocess.run(  # noqa: ASYNC221 - a moment, of a test
            program(BY_DESCRIPTOR), pass_fds=(handle,), capture_output=True, check=False
        )
        assert control.stdout == b"won\n", control.stderr
        result = await attempt(walled, BY_DESCRIPTOR)
        assert result.stdout == b"lost\n", result.stderr
    finally:
        os.close(handle)
