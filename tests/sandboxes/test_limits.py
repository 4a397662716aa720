from __future__ import annotations

import time

import pytest

from longrein.sandboxes.base import SandboxLimits, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from tests.sandboxes.inside import PYTHON_MOUNTS, cgroups_writable, python

HOG = """
kept = []
for _ in range(40):
    kept.append(bytearray(10 << 20))
print("all of it")
"""
BOMB = """
import os, time
made = 0
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
    except BlockingIOError:
        break
    made += 1
print(made)
"""


async def test_a_memory_hog_is_killed(bubblewrap: BubblewrapBackend) -> None:
    if not cgroups_writable():
        pytest.skip("no writable memory cgroup for this user on this machine")
    limits = SandboxLimits(memory_bytes=150 << 20)
    sandbox = await bubblewrap.create(SandboxSpec(readonly_mounts=PYTHON_MOUNTS, limits=limits))
    result = await sandbox.exec(python(HOG), timeout_s=30)
    assert (result.exit_code, result.stdout, result.timed_out) == (-9, b"", False)
    assert (await sandbox.exec(("echo", "alive"), timeout_s=20)).stdout == b"alive\n"
    await sandbox.close()


async def test_a_fork_bomb_is_bounded(bubblewrap: BubblewrapBackend) -> None:
    """With or without cgroups: the kernel counts processes for each sandbox's user too."""
    limits = SandboxLimits(pids=40)
    sandbox = await bubblewrap.create(SandboxSpec(readonly_mounts=PYTHON_MOUNTS, limits=limits))
    result = await sandbox.exec(python(BOMB), timeout_s=30)
    assert 20 <= int(result.stdout) <= 40, result.stderr
    await sandbox.close()


async def test_endless_output_is_read_and_only_its_end_kept(bubblewrap: BubblewrapBackend) -> None:
    limits = SandboxLimits(output_bytes=1000)
    sandbox = await bubblewrap.create(SandboxSpec(limits=limits))
    result = await sandbox.exec(("sh", "-c", "head -c 3000000 /dev/zero; echo end; echo oops >&2"), timeout_s=30)
    assert len(result.stdout) == 1000
    assert result.stdout.endswith(b"end\n")
    assert result.stderr == b"oops\n"
    await sandbox.close()


async def test_starting_and_closing_is_quick(bubblewrap: BubblewrapBackend) -> None:
    """Generous bounds for a busy machine; the budget is 50 ms and 200 ms."""
    sandbox = await bubblewrap.create(SandboxSpec())
    started_s = time.monotonic()
    process = await sandbox.start(("sleep", "60"))
    assert time.monotonic() - started_s < 1.0
    started_s = time.monotonic()
    await sandbox.close()
    assert time.monotonic() - started_s < 1.0
    assert (await process.wait(1.0)).exit_code == -9
