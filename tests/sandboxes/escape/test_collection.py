"""Tricks with what is left to be collected. Controls collect as a careless harness would."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path

import pytest

from longrein.sandboxes.base import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from longrein.sandboxes.tree import Owner, PrivateTree
from tests.sandboxes.escape.attack import wins
from tests.sandboxes.inside import PYTHON_MOUNTS, sh

HARD_LINK = """
    os.link(os.environ["TARGET"], "mine")
    return True
"""
DEVICE = """
    os.mknod("disk", 0o60666, os.makedev(259, 0))
    return True
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "secret").write_text("s3cret")
    return tmp_path / "host" / "secret"


async def leaving(backend: SandboxBackend, script: str, limits: SandboxLimits | None = None) -> tuple[Sandbox, Path]:
    """A sandbox after an agent, and where its work directory lies on the host."""
    spec = SandboxSpec(readonly_mounts=PYTHON_MOUNTS, limits=limits or SandboxLimits())
    sandbox = await backend.create(spec)
    assert (await sandbox.exec(sh(script), timeout_s=20)).exit_code == 0
    return sandbox, sandbox._view.layout.work.path  # type: ignore[attr-defined]


async def test_symlinks_to_the_host(walled: SandboxBackend, secret: Path) -> None:
    sandbox, folder = await leaving(walled, f"ln -s {secret} file; ln -s {secret.parent} folder; ln -s / root")
    assert (folder / "file").read_text() == (folder / "folder" / "secret").read_text() == "s3cret", "the control"
    tree = await sandbox.collect()
    await sandbox.close()
    assert tree.files == {} and sorted(tree.symlinks) == ["file", "folder", "root"]


def test_a_folder_that_becomes_a_symlink_meanwhile(tmp_path: Path, secret: Path) -> None:
    """As if something of the agent's still ran: a folder and a symlink change places while they are collected."""
    tree = PrivateTree(tmp_path / "work", Owner(uid=os.getuid(), gid=os.getgid()))
    tree.make()
    (tree.path / "a").mkdir()
    (tree.path / "a" / "secret").write_text("mine")
    (tree.path / "b").symlink_to(secret.parent)
    done = threading.Event()

    def swap() -> None:
        for old, new in (("a", "c"), ("b", "a"), ("a", "b"), ("c", "a")):
            (tree.path / old).rename(tree.path / new)

    def swap_on() -> None:
        while not done.is_set():
            swap()

    assert not (tree.path / "a").is_symlink()
    (tree.path / "a").rename(tree.path / "c")
    (tree.path / "b").rename(tree.path / "a")
    assert (tree.path / "a" / "secret").read_text() == "s3cret", "the control: looked at first, and opened then"
    (tree.path / "a").rename(tree.path / "b")
    (tree.path / "c").rename(tree.path / "a")
    swapping = threading.Thread(target=swap_on)
    swapping.start()
    try:
        for _ in range(1500):
            collected = tree.collect(SandboxLimits())
            assert b"s3cret" not in {file.data for file in collected.files.values()}
    finally:
        done.set()
        swapping.join()


async def test_hard_links_to_the_host(plain: SandboxBackend, walled: SandboxBackend, secret: Path) -> None:
    """Root would collect what the agent itself may not read."""
    env = {"TARGET": str(secret)}
    assert not await wins(walled, HARD_LINK, env=env)
    assert not await wins(walled, HARD_LINK, env={"TARGET": "/etc/passwd"}), "not of what it sees, either"
    assert not await wins(walled, HARD_LINK, env={"TARGET": "/usr/bin/env"})
    assert await wins(plain, HARD_LINK, env=env)


async def test_devices(plain: SandboxBackend, walled: SandboxBackend) -> None:
    assert not await wins(walled, DEVICE)
    if os.getuid() == 0:
        assert await wins(plain, DEVICE), "a device of its own, as root"


async def test_pipes_and_sockets_that_would_be_waited_for(walled: SandboxBackend) -> None:
    sandbox, folder = await leaving(walled, "mkfifo answer.txt")
    assert stat.S_ISFIFO((folder / "answer.txt").stat().st_mode), "the control: opening it would wait for ever"
    async with asyncio.timeout(60):
        tree = await sandbox.collect()
    await sandbox.close()
    assert (tree.files, tree.special) == ({}, ("answer.txt",))


async def test_a_file_that_says_it_is_huge(walled: SandboxBackend) -> None:
    sandbox, folder = await leaving(walled, "truncate -s 3G huge; echo 42 > answer.txt")
    assert (folder / "huge").stat().st_size == 3 << 30, "the control: read whole, it takes 3 GB of ours"
    tree = await sandbox.collect()
    await sandbox.close()
    assert sorted(tree.files) == ["answer.txt"] and tree.left_out == ("huge",)


async def test_names_that_are_no_names(walled: SandboxBackend) -> None:
    """Newlines, dashes and shell words are names; bytes that are no text are left out, and are named readably."""
    script = r"""touch -- '-rf' "$(printf 'a\nb')" '$(reboot)' ' ' '*' "$(printf 'bad\377name')" """
    sandbox, folder = await leaving(walled, script)
    assert len(list(folder.iterdir())) == 6
    tree = await sandbox.collect()
    second = await walled.create(SandboxSpec())
    await second.restore(tree)
    assert sorted((await second.collect()).files) == sorted(["-rf", "a\nb", "$(reboot)", " ", "*"])
    assert tree.left_out == ("bad?name",)
    await sandbox.close()
    await second.close()


async def test_what_was_locked_is_collected_all_the_same(walled: SandboxBackend) -> None:
    """Were it left out, an agent could choose what its judge sees."""
    sandbox, folder = await leaving(walled, "mkdir d; echo bad > d/evidence; chmod 000 d/evidence d")
    assert (folder / "d").stat().st_mode & 0o777 == 0, "the control"
    tree = await sandbox.collect()
    await sandbox.close()
    assert tree.files["d/evidence"].data == b"bad\n" and not tree.files["d/evidence"].executable
    assert tree.left_out == ()
