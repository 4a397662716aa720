"""200 sessions in a row and 50 at once: no process, mount, cgroup, file, port or descriptor is left."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from pathlib import Path

import psutil
import pytest

from longrein.sandboxes.base import SandboxBackend, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from tests.sandboxes.inside import left_behind

NOTHING: dict[str, list[str]] = {"folders": [], "processes": [], "cgroups": []}
SCRIPT = "echo x > made; mkfifo pipe; (setsid sleep 600 &); exec 9<>/dev/tcp/127.0.0.1/{port}; echo done"


def traces(known: set[threading.Thread]) -> dict[str, object]:
    """What a session could leave on this machine or in this process, besides the event loop's own threads."""
    us = psutil.Process()
    return {
        "descriptors": us.num_fds(),
        "children": len(us.children(recursive=True)),
        "threads": [t.name for t in threading.enumerate() if t not in known and not t.name.startswith("asyncio_")],
        "mounts": Path("/proc/self/mountinfo").read_text().count("longrein-"),
        "ports": sorted(c.laddr.port for c in us.net_connections("tcp") if c.status == psutil.CONN_LISTEN),
    }


async def one(backend: SandboxBackend, port: int) -> None:
    sandbox = await backend.create(SandboxSpec(files={"a": b"a"}, loopback_ports=(port,)))
    try:
        result = await sandbox.exec(("bash", "-c", SCRIPT.format(port=port)), timeout_s=60)
        assert (result.exit_code, result.stdout) == (0, b"done\n"), result.stderr
        assert (await sandbox.collect()).special == ("pipe",)
    finally:
        await sandbox.close()


async def after(backend: BubblewrapBackend, root: Path, rounds: int, at_once: int) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    async with server:
        await one(backend, port)
        # What earlier tests left to the collector must not go meanwhile.
        gc.collect()
        known = set(threading.enumerate())
        before = traces(known)
        for _ in range(rounds):
            await asyncio.gather(*[one(backend, port) for _ in range(at_once)])
        # The last threads end, and the kernel gives ports and mounts back, a moment after the close.
        deadline_s = time.monotonic() + 60
        while (left_behind(root) != NOTHING or traces(known) != before) and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert left_behind(root) == NOTHING
        assert traces(known) == before


async def test_some_at_once_leave_nothing(bubblewrap: BubblewrapBackend, root: Path) -> None:
    await after(bubblewrap, root, rounds=2, at_once=6)


@pytest.mark.agents
async def test_200_in_a_row_leave_nothing(bubblewrap: BubblewrapBackend, root: Path) -> None:
    await after(bubblewrap, root, rounds=200, at_once=1)


@pytest.mark.agents
async def test_50_at_once_leave_nothing(bubblewrap: BubblewrapBackend, root: Path) -> None:
    await after(bubblewrap, root, rounds=1, at_once=50)


async def test_one_that_is_cancelled_at_any_moment_leaves_nothing(bubblewrap: BubblewrapBackend, root: Path) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    async with server:
        for delay_s in (0.0, 0.004, 0.02, 0.06):
            running = asyncio.create_task(one(bubblewrap, port))
            await asyncio.sleep(delay_s)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert left_behind(root) == NOTHING
