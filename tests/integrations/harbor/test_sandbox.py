"""Our sandbox over an environment that is known only by Harbor's methods."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from longrein.errors import SandboxError
from longrein.integrations.harbor.relay import ExecRelay
from longrein.integrations.harbor.sandbox import HarborSandbox
from longrein.sandboxes.base import SandboxLimits, SandboxSpec, WorkFile, WorkTree
from longrein.types import Mount
from tests.integrations.harbor.stand_in import Result, StandIn, stand_in
from tests.integrations.harbor.test_shell import LISTENS

SPEC = SandboxSpec(files={"given/a.txt": b"one"}, folders=("/tests",))


@asynccontextmanager
async def opened(folder: Path, spec: SandboxSpec = SPEC) -> AsyncIterator[HarborSandbox]:
    async with stand_in("/tests", "/opt/agent") as environment:
        (folder / "own").mkdir()
        sandbox = HarborSandbox(environment, spec, folder / "own")
        await sandbox.prepare()
        try:
            yield sandbox
        finally:
            await sandbox.close()
            await sandbox.close()
            assert environment.stopped and not (folder / "own").exists()


async def test_commands_end_as_they_do_everywhere(tmp_path: Path) -> None:
    async with opened(tmp_path) as sandbox:
        said = await sandbox.exec(
            ("sh", "-c", 'cat; echo "$0 $A" >&2; pwd; exit 5', "it's"), env={"A": "b c"}, stdin=b"in\n", timeout_s=20
        )
        assert (said.stdout, said.stderr, said.exit_code) == (b"in\n/workdir\n", b"it's b c\n", 5)
        assert (await sandbox.exec(("no-such-program",), timeout_s=20)).exit_code == 127
        assert (await sandbox.exec(("sh", "-c", "kill -SEGV $$"), timeout_s=20)).exit_code == -11
        late = await sandbox.exec(("sleep", "60"), timeout_s=0.5)
        assert (late.timed_out, late.exit_code) == (True, -9)


async def test_nothing_that_a_command_started_outlives_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as sandbox:
        beats = (
            "(while :; do date +%s%N > beat; sleep 0.1; done) >/dev/null 2>&1 & until [ -s beat ]; do sleep 0.1; done"
        )
        await sandbox.exec(("bash", "-c", f"setsid bash -c '{beats}'"), timeout_s=20)
        before = await sandbox.read("beat")
        await asyncio.sleep(0.4)
        assert await sandbox.read("beat") == before


async def test_a_started_command_is_waited_for_or_killed(tmp_path: Path) -> None:
    async with opened(tmp_path) as sandbox:
        quick = await sandbox.start(("sh", "-c", "echo hello"))
        assert (await quick.wait(20)).stdout == b"hello\n"
        slow = await sandbox.start(("sleep", "60"))
        ended = await slow.wait(0.8)
        assert (ended.timed_out, ended.exit_code) == (True, -9)


async def test_files_and_mounts_are_there_and_links_are_not_followed(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "run").write_text("#!/bin/sh\necho ran\n")
    (agent / "run").chmod(0o755)
    spec = SandboxSpec(readonly_mounts=(Mount(source=str(agent), target="/opt/agent"),))
    async with opened(tmp_path, spec) as sandbox:
        assert (await sandbox.exec(("/opt/agent/run",), timeout_s=20)).stdout == b"ran\n"
        await sandbox.write("deep/er/x", b"\x00\xff")
        assert await sandbox.read("/workdir/deep/er/x") == b"\x00\xff"
        await sandbox.exec(("ln", "-s", "deep", "link"), timeout_s=20)
        for path in ("link/er/x", "deep", "nowhere"):
            with pytest.raises(FileNotFoundError):
                await sandbox.read(path)


async def test_work_is_collected_and_put_into_another(tmp_path: Path) -> None:
    async with opened(tmp_path) as sandbox:
        await sandbox.write("run.sh", b"#!/bin/sh\n", executable=True)
        await sandbox.exec(("sh", "-c", "ln -s /etc/passwd out; mkfifo pipe; mkdir empty"), timeout_s=20)
        tree = await sandbox.collect()
    assert tree.files == {
        "given/a.txt": WorkFile(data=b"one"),
        "run.sh": WorkFile(data=b"#!/bin/sh\n", executable=True),
    }
    assert (tree.symlinks, tree.special, set(tree.folders)) == ({"out": "/etc/passwd"}, ("pipe",), {"given", "empty"})
    (tmp_path / "second").mkdir()
    async with opened(tmp_path / "second", SandboxSpec()) as other:
        await other.restore(tree)
        again = await other.collect()
    assert (again.files, again.symlinks) == (tree.files, tree.symlinks)


async def test_neither_its_disk_nor_ours_is_the_agents_to_fill(tmp_path: Path) -> None:
    limits = SandboxLimits(collect_bytes=1 << 20, collect_entries=50)
    async with opened(tmp_path, SandboxSpec(limits=limits)) as sandbox:
        await sandbox.exec(("sh", "-c", "echo small > a; truncate -s 3G b; seq 9 > c; chmod 000 c"), timeout_s=20)
        with pytest.raises(SandboxError, match=f"more than {1 << 20} bytes"):
            await sandbox.read("b")
        tree = await sandbox.collect()
        assert tree.left_out
        await sandbox.exec(("rm", "b"), timeout_s=20)
        assert (await sandbox.collect()) == WorkTree(
            files={"a": WorkFile(data=b"small\n"), "c": WorkFile(data=b"1\n2\n3\n4\n5\n6\n7\n8\n9\n")}
        )


async def test_a_command_that_is_only_just_starting_is_killed_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as sandbox:
        early = await sandbox.start(("sleep", "3600"))
        await asyncio.wait_for(early.kill(), 20)
        running = await sandbox.start(("sleep", "3600"))
        waiting = asyncio.create_task(running.wait(3600))
        await asyncio.sleep(0)
    assert (await waiting).exit_code == -9, "closing ends what is waited for"
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_closed_sandbox_and_a_failing_provider_are_infrastructure_faults(tmp_path: Path) -> None:
    class Broken(StandIn):
        async def exec(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            raise KeyError("quota")

    async with stand_in() as environment:
        broken = HarborSandbox(Broken(environment.sandbox, environment.shell), SPEC, tmp_path)
        with pytest.raises(SandboxError, match="KeyError: 'quota'"):
            await broken.prepare()
    await broken.close()
    with pytest.raises(SandboxError, match="closed"):
        await broken.exec(("true",), timeout_s=1)


DOWNLOAD = """
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
line.sendall(b"x" * int(sys.argv[2])); line.shutdown(socket.SHUT_WR)
print(sum(len(part) for part in iter(lambda: line.recv(65536), b"")))
"""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back as many bytes as came, and a hundred more."""
    got = await reader.read()
    writer.write(b"y" * (len(got) + 100))
    await writer.drain()
    writer.close()


async def test_a_port_of_this_machine_is_reached_through_nothing_but_commands(tmp_path: Path) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with stand_in() as environment, server:
        sandbox = HarborSandbox(environment, SandboxSpec(limits=SandboxLimits()), tmp_path)
        await sandbox.prepare()
        relay = await ExecRelay().open(environment, (port,))
        sandbox.closes(relay)
        await sandbox.write("ask.py", DOWNLOAD.encode())
        sizes = (10, 300_000, 0)
        said = await asyncio.gather(
            *(sandbox.exec(("python3", "ask.py", str(port), str(size)), timeout_s=40) for size in sizes)
        )
        assert [result.stdout for result in said] == [f"{size + 100}\n".encode() for size in sizes]
        server.close()
        gone = await sandbox.exec(("python3", "ask.py", str(port), "1"), timeout_s=40)
        assert gone.stdout == b"0\n" or b"Error" in gone.stderr
        await sandbox.close()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


class Failing(StandIn):
    """Its provider stops to run the relay's commands once it is told to."""

    down = False

    async def exec(self, command: str, *args: Any, **kwargs: Any) -> Result:
        if self.down and "relay.py talk" in command:
            raise ConnectionError("the provider's API is down")
        return await super().exec(command, *args, **kwargs)


KNOCK = "exec 9<>/dev/tcp/127.0.0.1/{}"
KILL_THE_RELAY = """
import os, pathlib
for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        if b"serve" in line.read_bytes().split(bytes(1)):
            os.kill(int(line.parent.name), 9)
    except OSError:
        pass  # it has just ended
"""


@pytest.mark.parametrize("by_the_agent", [False, True])
async def test_work_without_a_model_says_nothing_unless_the_agent_cut_it_off(
    by_the_agent: bool, tmp_path: Path
) -> None:
    """An infrastructure fault is not a zero, and an agent cannot choose not to be judged."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with stand_in() as inner, server:
        environment = Failing(inner.sandbox, inner.shell)
        sandbox = HarborSandbox(environment, SandboxSpec(), tmp_path)
        await sandbox.prepare()
        relay = await ExecRelay().open(environment, (port,))
        sandbox.closes(relay)
        if by_the_agent:
            await sandbox.exec(("python3", "-c", KILL_THE_RELAY), timeout_s=20)
        else:
            environment.down = True
            await sandbox.exec(("bash", "-c", KNOCK.format(port)), timeout_s=20)
        async with asyncio.timeout(20):
            while relay.running:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.02)
        if by_the_agent:
            assert await sandbox.collect() == WorkTree()
        else:
            with pytest.raises(SandboxError, match="API is down"):
                await sandbox.collect()
        await sandbox.close()


FORGED = """
import json, os, sys, time
with open("/tmp/told", "a") as file:
    file.write(sys.argv[4])
print(json.dumps([] if os.path.exists("/tmp/asked") else [["open", 7, "PORT"]]))
open("/tmp/asked", "w").close()
time.sleep(0.05)
"""
CONNECT = 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])))'


async def test_an_agent_that_puts_its_own_relay_there_reaches_no_other_port(tmp_path: Path) -> None:
    reached: list[str] = []

    async def note(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append("a port of the host")
        writer.close()

    gateway, other = [await asyncio.start_server(handle, "127.0.0.1", 0) for handle in (answer, note)]
    ports = [server.sockets[0].getsockname()[1] for server in (gateway, other)]
    async with stand_in() as environment, gateway, other:
        relay = await ExecRelay().open(environment, (ports[0],))
        forged = FORGED.replace("PORT", str(ports[1]))
        await environment.exec(f"cat > /tmp/.longrein-relay-*/relay.py <<'END'\n{forged}\nEND")
        # Ends the talk that is under way; the next one is with the forged part.
        await environment.exec(f"python3 -c '{CONNECT}' {ports[0]}")
        told = await environment.exec("""timeout 30 sh -c 'until grep -q "end.*7" /tmp/told; do sleep 0.05; done'""")
        assert told.return_code == 0 and reached == []
        await relay.close()


async def test_a_relay_that_cannot_start_says_why() -> None:
    async with stand_in() as environment:
        await environment.exec(f"python3 -m http.server 8124 --bind 127.0.0.1 >/dev/null 2>&1 & {LISTENS.format(8124)}")
        with pytest.raises(SandboxError, match="in use"):
            await ExecRelay().open(environment, (8124,))
    assert os.getpid()
