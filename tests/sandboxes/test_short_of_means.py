"""A machine without room for another process or descriptor: an error, and nothing that stays."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from longrein.errors import SandboxError
from longrein.sandboxes import bwrap_channels, layout
from longrein.sandboxes.base import SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.bwrap_channels import Channels
from longrein.sandboxes.closing import close_or_log
from tests.sandboxes.inside import sh


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("at", ["options", "stdin", "seccomp"])
async def test_a_start_without_a_descriptor_to_be_had_leaves_none_open(
    at: str, bubblewrap: BubblewrapBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bwrap_channels._memory_file

    def full(opened: Any, name: str, data: bytes) -> int:
        if name == at:
            raise OSError(errno.EMFILE, "Too many open files")
        return made(opened, name, data)

    sandbox = await bubblewrap.create(SandboxSpec())
    with monkeypatch.context() as patch:
        patch.setattr(bwrap_channels, "_memory_file", full)
        before = descriptors()
        with pytest.raises(OSError, match="Too many open files"):
            Channels(["--unshare-all"], b"in", b"filter")
        assert descriptors() == before
        if at != "seccomp":
            with pytest.raises(SandboxError, match="no room for another sandbox"):
                await sandbox.start(sh("cat"), stdin=b"in")
    assert (await sandbox.exec(sh("cat"), stdin=b"in", timeout_s=60)).stdout == b"in"
    await sandbox.close()


async def test_a_folder_that_cannot_be_removed_costs_nobody_a_verdict(
    bubblewrap: BubblewrapBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = await bubblewrap.create(SandboxSpec())

    def full(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(layout.subprocess, "run", full)
        await close_or_log(sandbox)
    assert "left something behind" in caplog.text
