"""Reach other processes, multiply, do not die."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from longrein.sandboxes.base import SandboxBackend, SandboxLimits, SandboxSpec
from tests.sandboxes.escape.attack import attempt, program, stop, wins
from tests.sandboxes.inside import PYTHON_MOUNTS, left_behind

PTRACE_CHILD = """
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    attached = libc.ptrace(16, child, None, None) == 0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return attached
"""
READ_MEMORY = """
    import ctypes
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    libc = ctypes.CDLL(None, use_errno=True)
    source = ctypes.create_string_buffer(b"in memory")
    into = ctypes.create_string_buffer(9)
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    got = libc.process_vm_readv(
        child, ctypes.byref(Vector(ctypes.addressof(into), 9)), 1,
        ctypes.byref(Vector(ctypes.addressof(source), 9)), 1, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return got == 9
"""
KILL_OTHERS = """
    os.kill(int(os.environ["VICTIM"]), signal.SIGKILL)
    return True
"""
MULTIPLY = """
    made = 0
    try:
        for made in range(120):
            if os.fork() == 0:
                time.sleep(3)
                os._exit(0)
    except OSError:
        return False
    return True
"""
OUTLIVE = """
    unseen(f"open({os.environ['PID_FILE']!r}, 'w').write(str(os.getpid()))\\ntime.sleep(60)")
    while not os.path.exists(os.environ["PID_FILE"]):
        time.sleep(0.01)
    return True
"""
DEAF = """
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("body", [PTRACE_CHILD, READ_MEMORY], ids=["ptrace", "process_vm_readv"])
async def test_the_memory_of_other_processes(plain: SandboxBackend, walled: SandboxBackend, body: str) -> None:
    """Of a child even, which any machine allows: what may not be done to it may be done to nobody."""
    if not await wins(plain, body):
        pytest.skip("the control fails: this machine forbids ptrace to everybody (kernel.yama.ptrace_scope)")
    assert not await wins(walled, body)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


async def test_killing_others(plain: SandboxBackend, walled: SandboxBackend, victim: subprocess.Popen[bytes]) -> None:
    env = {"VICTIM": str(victim.pid)}
    assert not await wins(walled, KILL_OTHERS, env=env)
    assert victim.poll() is None
    assert await wins(plain, KILL_OTHERS, env=env)
    assert victim.wait(20) == -9


async def test_a_fork_bomb(plain: SandboxBackend, walled: SandboxBackend) -> None:
    """The control is a small one, which ends by itself: 120 processes, where 40 are allowed."""
    limits = SandboxLimits(pids=40)
    assert (await attempt(plain, MULTIPLY, limits=limits)).stdout == b"won\n"
    stopped = await attempt(walled, MULTIPLY, limits=limits)
    assert stopped.stdout == b"lost\n", stopped


async def test_outliving_the_session(plain: SandboxBackend, walled: SandboxBackend, tmp_path: Path, root: Path) -> None:
    """Double fork, a session of its own, a clean environment: what the fallback knows its processes by is gone."""
    pid_file = tmp_path / "pid"
    try:
        assert await wins(plain, OUTLIVE, env={"PID_FILE": str(pid_file)})
        assert pid_file.exists()
    finally:
        assert stop(pid_file), "the control did not outlive its sandbox"
    result = await attempt(walled, OUTLIVE, env={"PID_FILE": "/workdir/pid"})
    assert result.stdout == b"won\n", "it was started"
    assert left_behind(root) == {"folders": [], "processes": [], "cgroups": []}
    assert [finding.kind for finding in result.findings] == ["processes_left"]


def test_the_control_is_deaf_to_sigterm() -> None:
    control = subprocess.Popen(program(DEAF), stdout=subprocess.PIPE)
    assert control.stdout is not None
    control.stdout.readline()
    control.terminate()
    time.sleep(0.2)
    assert control.poll() is None
    control.kill()
    control.communicate()


async def test_ignoring_every_signal(plain: SandboxBackend, walled: SandboxBackend) -> None:
    """Nobody ignores SIGKILL, and both send it; what the fallback cannot find is the test above this one."""
    for backend in (plain, walled):
        sandbox = await backend.create(SandboxSpec(readonly_mounts=PYTHON_MOUNTS))
        result = await sandbox.exec(program(DEAF), timeout_s=1.0)
        await sandbox.close()
        assert (result.exit_code, result.timed_out) == (-9, True)
