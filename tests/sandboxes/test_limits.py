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
    assert [finding.kind for finding in result.findings] == ["memory_limit"]
    assert (await sandbox.exec(("echo", "alive"), timeout_s=20)).stdout == b"alive\n"
    await sandbox.close()


async def test_a_fork_bomb_is_bounded(bubblewrap: BubblewrapBackend) -> None:
    """With or without cgroups: the kernel counts processes for each sandbox's user too."""
    limits = SandboxLimits(pids=40)
    sandbox = await bubblewrap.create(SandboxSpec(readonly_mounts=PYTHON_MOUNTS, limits=limits))
    result = await sandbox.exec(python(BOMB), timeout_s=30)
    assert 20 <= int(result.stdout) <= 40, result.stderr
    kinds = {finding.kind for finding in result.findings}
    assert kinds == ({"pids_limit", "processes_left"} if cgroups_writable() else {"processes_left"})
    await sandbox.close()


async def test_endless_output_is_read_and_only_its_end_kept(bubblewrap: BubblewrapBackend) -> None:
    limits = SandboxLimits(output_bytes=1000)
    sandbox = await bubblewrap.create(SandboxSpec(limits=limits))
    result = await sandbox.exec(("sh", "-c", "head -c 3000000 /dev/zero; echo end; echo oops >&2"), timeout_s=30)
    assert len(result.stdout) == 1000
    assert result.stdout.endswith(b"end\n")
    assert result.stderr == b"oops\n"
    await sandbox.close()


@pytest.mark.alone
async def test_starting_and_closing_is_quick(bubblewrap: BubblewrapBackend) -> None:
    """Generous bounds, for the best of some: a machine is busy now and then. The budget is 50 ms and 200 ms."""
    starts_s, closes_s = [], []
    for _ in range(10):
        sandbox = await bubblewrap.create(SandboxSpec())
        started_s = time.monotonic()
        process = await sandbox.start(("sleep", "600"))
        starts_s.append(time.monotonic() - started_s)
        started_s = time.monotonic()
        await sandbox.close()
        closes_s.append(time.monotonic() - started_s)
        assert (await process.wait(20)).exit_code == -9
    assert min(starts_s) < 1.0 and min(closes_s) < 1.0


BUSY = """
import time
start = time.monotonic()
while time.process_time() < 0.4:
    pass
print(time.monotonic() - start)
"""


async def test_the_processor_is_shared_out(bubblewrap: BubblewrapBackend) -> None:
    if not cgroups_writable():
        pytest.skip("no writable cpu cgroup for this user on this machine")
    limits = SandboxLimits(cpus=0.2)
    sandbox = await bubblewrap.create(SandboxSpec(readonly_mounts=PYTHON_MOUNTS, limits=limits))
    result = await sandbox.exec(python(BUSY), timeout_s=120)
    await sandbox.close()
    # What starts Python counts too. A busy machine can only make it more; without a share it is 0.4 s.
    assert float(result.stdout) > 1.0


FILLERS = {
    "many files": "i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero > f$i || exit; done",
    "all folders": "for d in /tmp ~ .; do (while :; do head -c 500000 /dev/zero >$(mktemp $d/XXXX); done)& done; wait",
    "removed, open": 'for n in 3 4 5 6 7; do eval "exec $n>f; rm f; head -c 10000000 /dev/zero >&$n"; done; sleep 99',
    "empty files": "while :; do touch $(seq -f e%g-$$ 1 900); mkdir d$$; cd d$$; done",
}


@pytest.mark.alone
@pytest.mark.parametrize("filler", FILLERS.values(), ids=FILLERS.keys())
async def test_whoever_fills_the_disk_is_killed(bubblewrap: BubblewrapBackend, filler: str) -> None:
    limits = SandboxLimits(disk_bytes=30 << 20)
    sandbox = await bubblewrap.create(SandboxSpec(limits=limits))
    started_s = time.monotonic()
    result = await sandbox.exec(("sh", "-c", filler), timeout_s=300)
    assert time.monotonic() - started_s < 120
    assert not result.timed_out
    assert result.exit_code == -9
    assert "disk_limit" in {finding.kind for finding in result.findings}
    await sandbox.close()


async def test_one_file_over_the_limit_is_refused_by_the_kernel(bubblewrap: BubblewrapBackend) -> None:
    sandbox = await bubblewrap.create(SandboxSpec(limits=SandboxLimits(disk_bytes=1 << 20)))
    result = await sandbox.exec(
        ("sh", "-c", "truncate -s 2M huge || echo refused; truncate -s 1M fits && echo ok"), timeout_s=20
    )
    assert result.stdout == b"refused\nok\n", result.stderr
    await sandbox.close()


async def test_much_in_the_folders_is_fine_below_the_limit(bubblewrap: BubblewrapBackend) -> None:
    sandbox = await bubblewrap.create(SandboxSpec(limits=SandboxLimits(disk_bytes=40 << 20)))
    result = await sandbox.exec(("sh", "-c", "head -c 30000000 /dev/zero > f; sleep 0.5; echo alive"), timeout_s=20)
    assert (result.stdout, result.findings) == (b"alive\n", ())
    await sandbox.close()
