"""Use up the machine: disk, memory, output. Controls do a little more than is allowed, and no more."""

from __future__ import annotations

import pytest

from longrein.sandboxes.base import SandboxBackend, SandboxLimits
from tests.sandboxes.escape.attack import attempt
from tests.sandboxes.inside import cgroups_writable

FILL_DISK = """
    for number in range(30):
        with open(f"{number}", "wb") as file:
            file.write(bytes(2 << 20))
        time.sleep(0.05)
    time.sleep(float(os.environ["STAY_S"]))
    return True
"""
FILL_MEMORY = """
    kept = [bytearray(10 << 20) for _ in range(30)]
    return len(kept) == 30
"""
FILL_SHARED_MEMORY = """
    with open("/dev/shm/x" + str(os.getpid()), "wb") as file:
        os.unlink(file.name)
        for _ in range(30):
            file.write(bytes(10 << 20))
            file.flush()
    return True
"""
SAY_MUCH = """
    for _ in range(64):
        sys.stdout.write("x" * (1 << 20))
    sys.stdout.write("\\n")
    return True
"""


async def test_the_disk(plain: SandboxBackend, walled: SandboxBackend) -> None:
    limits = SandboxLimits(disk_bytes=24 << 20)
    assert (await attempt(plain, FILL_DISK, env={"STAY_S": "0"}, limits=limits)).stdout == b"won\n"
    # Whoever watches may be a little late on a busy machine.
    stopped = await attempt(walled, FILL_DISK, env={"STAY_S": "600"}, limits=limits, timeout_s=120)
    assert (stopped.exit_code, stopped.stdout) == (-9, b"")
    assert [finding.kind for finding in stopped.findings] == ["disk_limit"]


@pytest.mark.parametrize("body", [FILL_MEMORY, FILL_SHARED_MEMORY], ids=["heap", "shared"])
async def test_the_memory(plain: SandboxBackend, walled: SandboxBackend, body: str) -> None:
    if not cgroups_writable():
        pytest.skip("no writable memory cgroup for this user on this machine")
    limits = SandboxLimits(memory_bytes=150 << 20)
    assert (await attempt(plain, body, limits=limits)).stdout == b"won\n"
    stopped = await attempt(walled, body, limits=limits)
    assert b"won" not in stopped.stdout
    assert "memory_limit" in {finding.kind for finding in stopped.findings} or b"No space" in stopped.stderr


async def test_our_own_memory_with_endless_output(plain: SandboxBackend, walled: SandboxBackend) -> None:
    """Both read all of it and keep the end: here the fallback holds too, and the control is that much was said."""
    limits = SandboxLimits(output_bytes=1000)
    for backend in (plain, walled):
        result = await attempt(backend, SAY_MUCH, limits=limits)
        assert len(result.stdout) == 1000 and result.stdout.endswith(b"xx\nwon\n")
