"""Sandboxes in OpenEnv's shapes, both ways: ours offered as theirs, and theirs, which are ours again, taken as ours."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import pytest

from longrein.errors import SandboxError
from longrein.sandboxes import openenv_shapes
from longrein.sandboxes.as_openenv import AsOpenEnv, ExecResult, Handle
from longrein.sandboxes.base import SandboxLimits, SandboxSpec, WorkFile, WorkTree
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.from_openenv import FromOpenEnv
from longrein.sandboxes.local import SubprocessBackend
from longrein.types import Mount
from tests.sandboxes.inside import PYTHON, PYTHON_MOUNTS, left_behind, python, sh
from tests.sandboxes.test_contract import assert_no_more_is_written

NOTHING: dict[str, list[str]] = {"folders": [], "processes": [], "cgroups": []}


@pytest.fixture
def theirs(bubblewrap: BubblewrapBackend, http_port: int) -> AsOpenEnv:
    return AsOpenEnv(bubblewrap, loopback_ports=(http_port,), readonly_mounts=PYTHON_MOUNTS)


@pytest.fixture
def handle(theirs: AsOpenEnv) -> Iterator[Handle]:
    made = theirs.create(envs={"FROM_CREATE": "1"}, metadata={"episode_id": "e"})
    yield made
    made.kill()


@pytest.mark.parametrize("name", ["OpenEnvHandle", "OpenEnvJob", "OpenEnvBackend"])
def test_ours_have_their_shape(name: str, handle: Handle, theirs: AsOpenEnv) -> None:
    shape: Any = getattr(openenv_shapes, name)

    @runtime_checkable
    class Checked(shape, Protocol):  # type: ignore[misc]
        pass

    assert isinstance({"OpenEnvHandle": handle, "OpenEnvBackend": theirs}.get(name) or handle.start_bg("true"), Checked)


def test_commands_and_files(handle: Handle) -> None:
    result = handle.exec("echo $FROM_CREATE $X; pwd; echo bad >&2; exit 3", envs={"X": "a b'c"}, cwd="/tmp")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "1 a b'c\n/tmp\n", "bad\n")
    handle.write_text("/home/sandbox/deep/er/f", "text ü")
    assert handle.read_text("/home/sandbox/deep/er/f") == "text ü"
    assert handle.exists("/home/sandbox/deep/er/f") and handle.exists("/usr/bin") and not handle.exists("/nothing")
    with pytest.raises(FileNotFoundError):
        handle.read_text("/workdir/nothing")
    with pytest.raises(SandboxError, match="cannot be written"):
        handle.write_text("/usr/bin/x", "")
    assert "localhost" in handle.read_text("/etc/hosts")
    assert handle.exec("sleep 60", timeout=0.3).exit_code == 137


def test_of_much_output_the_end_is_kept(bubblewrap: BubblewrapBackend) -> None:
    limits = SandboxLimits(collect_bytes=1 << 20, output_bytes=1000)
    handle = AsOpenEnv(bubblewrap, limits=limits).create()
    try:
        flood = handle.exec("head -c 3000000 /dev/zero | tr '\\0' x | tee /dev/stderr; echo end")
        assert (len(flood.stdout), flood.stdout[-5:], flood.stderr) == (1000, "xend\n", "x" * 1000)
    finally:
        handle.kill()


def test_background_commands_share_processes_and_ports(handle: Handle) -> None:
    """Their proxy listens in one command and is called from another."""
    serve = f"exec {PYTHON} -m http.server 7000 --bind 127.0.0.1"
    server = handle.start_bg(serve, cwd="/workdir")
    fetch = f"{PYTHON} -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:7000/').status)\""
    until_s = time.monotonic() + 120
    while (answer := handle.exec(fetch)).exit_code != 0 and time.monotonic() < until_s:
        time.sleep(0.05)
    assert answer.stdout == "200\n", answer.stderr
    assert handle.exec(f"test -d /proc/{server.pid}").exit_code == 0
    with pytest.raises(TimeoutError):
        server.wait(0.1)
    server.kill()
    server.kill()
    assert server.wait(20) == 137
    assert handle.exec(fetch).exit_code != 0


def test_after_kill_nothing_is_left_and_nothing_works(theirs: AsOpenEnv, root: Path) -> None:
    threads = threading.active_count()
    handle = theirs.create()
    handle.start_bg("(setsid sleep 600 &) ; sleep 600")
    handle.kill()
    handle.kill()
    assert left_behind(root) == NOTHING
    assert threading.active_count() == threads
    with pytest.raises(SandboxError, match="killed"):
        handle.exec("true")


def test_a_sandbox_ends_with_its_time(theirs: AsOpenEnv) -> None:
    handle = theirs.create(timeout_s=5)
    try:
        with pytest.raises(SandboxError, match="time is over"):
            handle.start_bg("sleep 600").wait(60)
    finally:
        handle.kill()


# And back: the same through both adapters.


@pytest.fixture
def around(theirs: AsOpenEnv, root: Path) -> FromOpenEnv:
    return FromOpenEnv(theirs, base="/tmp/ours")


async def test_exit_codes_output_and_environment(around: FromOpenEnv) -> None:
    sandbox = await around.create(SandboxSpec(files={"in/a.txt": b"\0A"}, env={"E": "1"}))
    result = await sandbox.exec(sh("cat in/a.txt; echo $E $F; echo bad >&2; exit 3"), env={"F": "2"}, timeout_s=20)
    assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (3, b"\0A1 2\n", b"bad\n", False)
    assert (await sandbox.exec(("cat",), stdin=b"\xff\0", timeout_s=20)).stdout == b"\xff\0"
    assert (await sandbox.exec(sh("kill -TERM $$"), timeout_s=20)).exit_code == -15
    assert (await sandbox.exec(("no-such-command",), timeout_s=20)).exit_code == 127
    assert (await sandbox.exec(("pwd",), timeout_s=20)).stdout.decode().strip() == sandbox.workdir
    slow = await sandbox.exec(sh("echo up; sleep 600"), timeout_s=6.0)
    assert (slow.exit_code, slow.stdout, slow.timed_out) == (-9, b"up\n", True)
    background = await sandbox.start(("sleep", "60"))
    await background.kill()
    assert (await background.wait(20)).exit_code == -9
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec(("true",), timeout_s=1)


async def test_whoever_was_cancelled_or_killed_writes_nothing_any_more(around: FromOpenEnv) -> None:
    await assert_no_more_is_written(around)


async def test_files_and_the_work_directory_move(around: FromOpenEnv) -> None:
    sandbox = await around.create(SandboxSpec(folders=("/tests", "/logs/verifier")))
    await sandbox.write("/tests/run.sh", b"#!/bin/sh\necho ran\n", executable=True)
    await sandbox.write(f"{sandbox.home}/.config/x", b"x")
    script = '"${SANDBOX_ROOT:-}/tests/run.sh" > "$SANDBOX_ROOT/logs/verifier/out"; mkdir -p d/empty; '
    script += (
        "printf '\\377' > d/x; chmod +x d/x; ln -s /etc/passwd abs; mkfifo pipe; echo l > locked; chmod 000 locked"
    )
    assert (await sandbox.exec(sh(script), timeout_s=20)).exit_code == 0
    assert await sandbox.read("/logs/verifier/out") == b"ran\n"
    tree = await sandbox.collect()
    assert tree == WorkTree(
        files={"d/x": WorkFile(data=b"\xff", executable=True), "locked": WorkFile(data=b"l\n")},
        symlinks={"abs": "/etc/passwd"},
        folders=("d", "d/empty"),
        special=("pipe",),
    )
    second = await around.create(SandboxSpec())
    await second.restore(tree)
    assert (await second.collect()).files == tree.files
    await sandbox.exec(sh("ln -s d ld"), timeout_s=20)
    for path in ("abs", "nothing", "d", "ld/x"):
        with pytest.raises(FileNotFoundError):
            await sandbox.read(path)
    for outside in ("../x", "/etc/passwd", f"{sandbox.home}/../../x"):
        with pytest.raises(SandboxError):
            await sandbox.read(outside)
    await sandbox.close()
    await second.close()


async def test_the_gateways_port(around: FromOpenEnv, http_port: int) -> None:
    sandbox = await around.create(SandboxSpec(loopback_ports=(http_port,)))
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{http_port}/').read())"
    assert (await sandbox.exec(python(code), timeout_s=20)).stdout == b"b'hello'\n"
    await sandbox.close()


@pytest.mark.filterwarnings("ignore:sandboxes are plain subprocesses:RuntimeWarning")
async def test_a_gateway_at_another_host_is_forwarded(root: Path) -> None:
    """Both on this machine: its loopback has many addresses."""
    server = await asyncio.start_server(_shout, "127.0.0.2", 0)
    port: int = server.sockets[0].getsockname()[1]
    backend = FromOpenEnv(AsOpenEnv(SubprocessBackend(root=str(root))), gateway_host="127.0.0.2", base=f"{root}-inside")
    async with server:
        sandbox = await backend.create(SandboxSpec(loopback_ports=(port,)))
        client = f"import socket; s = socket.create_connection(('127.0.0.1', {port})); s.sendall(b'abc'); "
        client += "s.shutdown(socket.SHUT_WR); print(s.recv(9))"
        result = await sandbox.exec(python(client), timeout_s=20)
        assert result.stdout == b"b'ABC'\n", result.stderr
        await sandbox.close()


async def _shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.read()).upper())
    await writer.drain()
    writer.close()


async def test_what_is_not_in_the_image_is_named(around: FromOpenEnv) -> None:
    with pytest.raises(SandboxError, match=r"/opt/agent.*not in the provider's image"):
        await around.create(SandboxSpec(readonly_mounts=(Mount(source="/usr", target="/opt/agent"),)))
    sandbox = await around.create(SandboxSpec(readonly_mounts=(Mount(source="/usr", target="/usr/bin"),)))
    await sandbox.close()


class Broken:
    def create(self, **_: Any) -> Any:
        raise KeyError("no such account")


async def test_faults_of_the_provider_are_ours_when_they_are_named() -> None:
    with pytest.raises(SandboxError, match="KeyError"):
        await FromOpenEnv(Broken(), faults=(KeyError,)).create(SandboxSpec())
    with pytest.raises(KeyError):
        await FromOpenEnv(Broken()).create(SandboxSpec())


class Gated:
    """A provider of sandboxes that are slow to come; and to tell how a command is doing."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.gate = threading.Event()
        self.killed = threading.Event()
        self.waiting: list[float | None] = []
        self.sandbox_id = "gated"

    def create(self, **_: Any) -> Gated:
        self.asked.set()
        self.gate.wait(60)
        return self

    def exec(self, cmd: str, **_: Any) -> ExecResult:
        return ExecResult(exit_code=0, stdout="", stderr="")

    def write_text(self, path: str, content: str) -> None: ...

    def start_bg(self, cmd: str, **_: Any) -> Gated:
        return self

    def wait(self, timeout: float | None = None) -> int:
        self.waiting.append(timeout)
        self.gate.wait(60)
        return 0

    def kill(self) -> None:
        self.killed.set()


async def until(event: threading.Event) -> None:
    async with asyncio.timeout(20):
        while not event.is_set():  # noqa: ASYNC110 - of a thread
            await asyncio.sleep(0.01)


async def test_a_sandbox_that_nobody_waits_for_any_more_is_ended_when_it_comes() -> None:
    provider = Gated()
    creating = asyncio.create_task(FromOpenEnv(provider).create(SandboxSpec()))
    await until(provider.asked)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert not provider.killed.is_set()
    provider.gate.set()
    await until(provider.killed)


async def test_agents_that_work_hold_up_nobody_else() -> None:
    """The event loop has fewer threads of its own than there are agents here, and everything needs them."""
    provider = Gated()
    provider.gate.set()
    sandboxes = await asyncio.gather(*(FromOpenEnv(provider).create(SandboxSpec()) for _ in range(40)))
    provider.gate.clear()
    working = [asyncio.create_task(sandbox.exec(("sleep", "60"), timeout_s=60)) for sandbox in sandboxes]
    try:
        async with asyncio.timeout(20):
            while len(provider.waiting) < len(working):  # noqa: ASYNC110 - of threads
                await asyncio.sleep(0.01)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 20) == "free"
    finally:
        for one in working:
            one.cancel()
        provider.gate.set()


@pytest.mark.parametrize("name", ["a-b", "1", "", "A=B", "A\nB"])
def test_a_variable_that_no_shell_can_set_is_refused(handle: Handle, name: str) -> None:
    with pytest.raises(SandboxError, match="environment variable"):
        handle.exec("true", envs={name: "x"})


def test_adapters_travel_to_other_processes(bubblewrap: BubblewrapBackend) -> None:
    assert isinstance(pickle.loads(pickle.dumps(FromOpenEnv(AsOpenEnv(bubblewrap)))), FromOpenEnv)


class Garbled:
    """A sandbox in which an agent has put its own ``base64`` before everybody else's."""

    sandbox_id = "s"

    def __init__(self) -> None:
        self.said: Any = ""
        self.code: Any = 0

    def create(self, **_: Any) -> Garbled:
        return self

    def exec(self, cmd: str, **_: Any) -> Any:
        return SimpleNamespace(exit_code=0, stdout=self.said, stderr="")

    def start_bg(self, cmd: str, **_: Any) -> Any:
        return SimpleNamespace(pid=1, wait=lambda timeout=None: self.code, kill=lambda: None)

    def write_text(self, path: str, content: str) -> None:
        pass

    def exists(self, path: str) -> bool:
        return True

    def kill(self) -> None:
        pass


async def test_what_is_no_base64_or_no_exit_code_is_a_fault_of_the_sandbox() -> None:
    theirs: Any = Garbled()
    sandbox = await FromOpenEnv(theirs).create(SandboxSpec())
    for theirs.said in ("abc", None, "ü"):
        with pytest.raises(SandboxError, match="sent no base64"):
            await sandbox.collect()
        with pytest.raises(SandboxError, match="sent no base64"):
            await sandbox.read("x")
        # What it says of its commands is the agent's own affair.
        assert (await sandbox.exec(("true",), timeout_s=5)).stdout == b""
    theirs.code = None
    with pytest.raises(SandboxError, match="NoneType for an exit code"):
        await sandbox.exec(("true",), timeout_s=5)
    await sandbox.close()
