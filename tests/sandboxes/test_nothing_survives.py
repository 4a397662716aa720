"""Invariant 7: nothing survives its session, whatever was done with it and however it ended."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from longrein.errors import SandboxError
from longrein.sandboxes.base import BackgroundProcess, Sandbox, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend, find_bwrap
from longrein.sandboxes.cgroups import Cgroup
from longrein.sandboxes.leftovers import command_name, processes_of, reap_leftovers
from longrein.sandboxes.local import SubprocessBackend
from tests.sandboxes.inside import left_behind, sh

NOTHING: dict[str, list[str]] = {"folders": [], "processes": [], "cgroups": []}
STUBBORN = "trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM HUP INT; sleep 600' &) ; sleep 600"
COMMANDS = {
    "quick": "echo x > made",
    "daemon": "(setsid sleep 600 &)",
    "stubborn": STUBBORN,
    "litter": "mkdir -p a/b/c; chmod 000 a; ln -s / everything; mkfifo pipe",
}
ACTIONS = st.one_of(
    st.tuples(st.just("exec"), st.sampled_from(sorted(COMMANDS))),
    st.tuples(st.just("start"), st.sampled_from(sorted(COMMANDS))),
    st.tuples(st.just("cancel"), st.sampled_from(sorted(COMMANDS))),
    st.tuples(st.just("leave"), st.sampled_from(sorted(COMMANDS))),
    st.tuples(st.sampled_from(["write", "wait", "kill", "close"]), st.just("")),
)


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """What a failing test (or a mutant) leaves is not left to the machine."""
    yield
    while groups := [Path(group) for group in left_behind(Path("longrein-"))["cgroups"]]:
        for pid in {pid for group in groups for pid in (group / "cgroup.procs").read_text().split()}:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        Cgroup(tuple(groups)).remove()


class Session:
    """Does to a sandbox what hypothesis thinks of."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.started: list[BackgroundProcess] = []
        self.unfinished: list[asyncio.Task[object]] = []

    async def exec(self, command: str) -> None:
        await self.sandbox.exec(sh(COMMANDS[command]), timeout_s=0.1)

    async def start(self, command: str) -> None:
        self.started.append(await self.sandbox.start(sh(COMMANDS[command])))

    async def leave(self, command: str) -> None:
        self.unfinished.append(asyncio.create_task(self.sandbox.exec(sh(COMMANDS[command]), timeout_s=3)))
        await asyncio.sleep(0.01)

    async def cancel(self, command: str) -> None:
        await self.leave(command)
        self.unfinished[-1].cancel()

    async def write(self, _: str) -> None:
        await self.sandbox.write("some/file", b"x")

    async def wait(self, _: str) -> None:
        for process in self.started:
            await process.wait(0.05)

    async def kill(self, _: str) -> None:
        for process in self.started:
            await process.kill()

    async def close(self, _: str) -> None:
        await self.sandbox.close()


async def act(sandbox: Sandbox, actions: list[tuple[str, str]]) -> None:
    session = Session(sandbox)
    for what, command in actions:
        with suppress(SandboxError):
            await getattr(session, what)(command)
    await sandbox.close()
    await asyncio.gather(*session.unfinished, return_exceptions=True)


async def one_session(root: Path, actions: list[tuple[str, str]]) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    sandbox = await BubblewrapBackend(root=str(root)).create(SandboxSpec(loopback_ports=(port,)))
    await act(sandbox, actions)
    server.close()
    await server.wait_closed()


# No shrinking: an example costs half a second.
@settings(deadline=None, max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(actions=st.lists(ACTIONS, max_size=5))
def test_nothing_survives_a_closed_session(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, str]]
) -> None:
    root = tmp_path_factory.mktemp("nothing")
    with asyncio.Runner() as runner:
        runner.run(asyncio.sleep(0))
        gc.collect()
        descriptors = open_descriptors()
        runner.run(one_session(root, actions))
        assert left_behind(root) == NOTHING
        assert open_descriptors() == descriptors, "a pipe, socket or pidfd of the session is still open"


def open_descriptors() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found.add((path.name, str(path.readlink())))
    return {(name, target) for name, target in found if not target.startswith("/proc/")}


OWNER = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
from longrein.sandboxes.base import SandboxSpec
from longrein.sandboxes.{module} import {backend} as Backend

async def main():
    port, root = int(sys.argv[1]), sys.argv[2]
    print("importing done", flush=True)
    sandbox = await Backend(root=root).create(SandboxSpec(loopback_ports=(port,)))
    await sandbox.start(("sh", "-c", {command!r}))
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def owner(backend: type, root: Path, port: int) -> subprocess.Popen[bytes]:
    code = OWNER.format(module=backend.__module__.rpartition(".")[2], backend=backend.__name__, command=STUBBORN)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(port), str(root)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def commands_left(root: Path, may_stay: str = "") -> set[str]:
    """What still runs once all but ``may_stay`` has had its time to end; that has 3 s."""
    started_s = time.monotonic()
    while left := {command_name(pid) for pid in processes_of(f"{root.name}/longrein-")} - {""}:
        if time.monotonic() - started_s > (3 if left <= {may_stay} else 20):
            break
        time.sleep(0.02)
    return left


def dead_process() -> int:
    dead = subprocess.Popen(["true"])
    dead.wait()
    return dead.pid


def name_of(owner_pid: int, namespaces_on: int = 0) -> str:
    """What a sandbox is called, of a process in this pid namespace or in another."""
    return f"longrein-{Path('/proc/self/ns/pid').stat().st_ino + namespaces_on}-{owner_pid}-1-abcdef"


@pytest.mark.parametrize("backend", [BubblewrapBackend, SubprocessBackend])
def test_leftovers_of_a_killed_owner_are_reaped(backend: type, root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = owner(backend, root, server.getsockname()[1])
        assert process.stdout is not None
        assert b"up" in [process.stdout.readline().strip(), process.stdout.readline().strip()]
        assert reap_leftovers(root) == (), "a living owner's sandbox is not touched"
        assert left_behind(root)["processes"]
        process.kill()
        process.communicate()
    if backend is BubblewrapBackend:
        assert commands_left(root) == set(), "bubblewrap's processes die with their owner, unasked"
    assert len(reap_leftovers(root)) == 1
    assert left_behind(root, process.pid) == NOTHING


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.02, 0.03, 0.05])
def test_an_owner_killed_while_it_starts_a_sandbox_leaves_nothing(root: Path, delay_s: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = owner(BubblewrapBackend, root, server.getsockname()[1])
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    # In the millisecond of the test below, what is left has not come as far as a command.
    assert commands_left(root, may_stay="bwrap") <= {"bwrap"}
    reap_leftovers(root)
    assert left_behind(root, process.pid) == NOTHING


def test_the_init_that_a_killed_bwrap_forgets_is_reaped(root: Path) -> None:
    """bwrap clones its init, reports it, and then lets it go: killed in between (here by the report), it never does."""
    session = root / name_of(dead_process())
    session.mkdir(parents=True)
    reader, writer = os.pipe()
    os.close(reader)
    options = ["--unshare-all", "--ro-bind", "/", "/", "--json-status-fd", str(writer), "sleep", "600"]
    bwrap = subprocess.Popen([str(session / "bwrap"), *options], executable=find_bwrap(), pass_fds=[writer])
    os.close(writer)
    assert bwrap.wait() == -signal.SIGPIPE
    try:
        assert len(left_behind(root)["processes"]) == 1
        assert reap_leftovers(root) == (session.name,)
        assert left_behind(root) == NOTHING
    finally:
        # Nor does a mutant leave it to the machine.
        for process in psutil.process_iter(["cmdline"]):
            if (process.info["cmdline"] or [""])[0] == str(session / "bwrap"):
                process.kill()


async def test_bwrap_is_called_by_the_folder_of_its_session(root: Path) -> None:
    sandbox = await BubblewrapBackend(root=str(root)).create(SandboxSpec())
    await sandbox.start(sh("sleep 600"))
    (session,) = left_behind(root)["folders"]
    assert any(f": {root / session / 'bwrap'} " in process for process in left_behind(root)["processes"])
    await sandbox.close()


async def test_leftovers_are_reaped_by_the_next_start(root: Path) -> None:
    pid = dead_process()
    (root / name_of(pid) / "folder-0").mkdir(parents=True)
    (root / name_of(pid, namespaces_on=1)).mkdir()
    (root / "not-ours").mkdir()
    sandbox = await BubblewrapBackend(root=str(root)).create(SandboxSpec())
    await sandbox.close()
    left = sorted(path.name for path in root.iterdir())
    assert left == [name_of(pid, namespaces_on=1), "not-ours"]


GIBBERISH = {
    "no JSON": "echo nonsense",
    "no pid": "echo '{}'",
    "no number": """echo '{"child-pid": "x"}'""",
    "nothing": "true",
    "a line without end": "head -c 200000 /dev/zero",
}


@pytest.mark.alone
@pytest.mark.parametrize("says", GIBBERISH.values(), ids=GIBBERISH.keys())
async def test_a_bwrap_that_reports_gibberish_fails_at_once(root: Path, tmp_path: Path, says: str) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f'#!/bin/bash\n{says} > /proc/self/fd/$2\neval "exec $2>&-"\nexec sleep 600\n')
    bwrap.chmod(0o755)
    sandbox = await BubblewrapBackend(root=str(root), bwrap=str(bwrap)).create(SandboxSpec())
    started_s = time.monotonic()
    with pytest.raises(SandboxError, match="did not start") as raised:
        await sandbox.exec(sh("true"), timeout_s=20)
    assert not isinstance(raised.value.__cause__, TimeoutError), "it was waited for"
    await sandbox.close()
    assert time.monotonic() - started_s < 60
    assert left_behind(root) == NOTHING
