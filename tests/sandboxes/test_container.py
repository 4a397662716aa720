"""Sandboxes as containers, through a real client and an image that the test imports.

Debian has what it takes: `apt-get install podman runc`. Without one of the clients and its engine all of this is
skipped, and so it is for an ordinary user, for whom podman needs more setting up than a test should do.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from longrein.errors import ConfigError, SandboxError
from longrein.sandboxes.base import SandboxLimits, SandboxSpec, WorkFile
from longrein.sandboxes.choose import choose_backend
from longrein.sandboxes.container import ContainerBackend
from longrein.sandboxes.container_client import ContainerClient
from longrein.types import Mount
from tests.sandboxes.inside import PYTHON, sh
from tests.sandboxes.whole_root import programs_with_libraries

pytestmark = pytest.mark.agents


def _image() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", dereference=True) as archive:
        for folder in ("tmp", "proc", "dev", "etc", "sys"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path in sorted(programs_with_libraries(PYTHON)):
            archive.add(path, arcname=str(path).removeprefix("/"))
    return made.getvalue()


@pytest.fixture(scope="module", params=["podman", "docker"])
def client(request: pytest.FixtureRequest) -> Iterator[str]:
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} on this machine (Debian: apt-get install podman runc)")
    if os.geteuid() != 0:
        pytest.skip("not root: rootless engines need subordinate uids, which a test does not set up")
    version = subprocess.run([request.param, "info"], capture_output=True, timeout=60, check=False)
    if version.returncode != 0:
        pytest.skip(f"{request.param} reaches no engine here: {version.stderr.decode(errors='replace').strip()[-200:]}")
    imported = subprocess.run(
        [request.param, "import", "-", "longrein-test:latest"],
        input=_image(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert imported.returncode == 0, imported.stderr
    yield request.param
    subprocess.run([request.param, "rmi", "--force", "longrein-test:latest"], capture_output=True, check=False)


@pytest.fixture
def backend(client: str, root: Path) -> ContainerBackend:
    return ContainerBackend(client, "longrein-test", root=str(root))


def containers(client: str) -> list[str]:
    listed = subprocess.run(
        [client, "ps", "-a", "--filter", "label=longrein.sandbox", "--format", "{{.Names}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


async def test_commands_files_and_the_end(backend: ContainerBackend, client: str, root: Path) -> None:
    spec = SandboxSpec(files={"in/a.txt": b"A"}, folders=("/tests", "/logs/verifier"), env={"E": "two\nlines 'n \"q"})
    sandbox = await backend.create(spec)
    result = await sandbox.exec(sh('cat in/a.txt; echo "$E$F"; echo bad >&2; exit 3'), env={"F": "!"}, timeout_s=60)
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"Atwo\nlines 'n \"q!\n", b"bad\n")
    assert (await sandbox.exec(("cat",), stdin=b"\0hello", timeout_s=60)).stdout == b"\0hello"
    assert (await sandbox.exec(("cat",), timeout_s=60)).stdout == b""
    assert (await sandbox.exec(sh("kill -TERM $$"), timeout_s=60)).exit_code == -15
    assert (await sandbox.exec(("no-such-command",), timeout_s=60)).exit_code == 127
    assert (await sandbox.exec(sh("exit 125"), timeout_s=60)).exit_code == 125
    await sandbox.write("/tests/t", b"hidden")
    copy = "cp /tests/t /logs/verifier/out; mkdir -p d/empty; ln -s ../in d/link; mkfifo pipe; touch ~/x /tmp/x; pwd"
    assert (await sandbox.exec(sh(copy), timeout_s=60)).stdout == b"/workdir\n"
    assert await sandbox.read("/logs/verifier/out") == b"hidden"
    tree = await sandbox.collect()
    assert (tree.files, tree.symlinks) == ({"in/a.txt": WorkFile(data=b"A")}, {"d/link": "../in"})
    assert (tree.folders, tree.special) == (("d", "in", "d/empty"), ("pipe",))
    await sandbox.close()
    await sandbox.close()
    assert containers(client) == [] and list(root.iterdir()) == []
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec(("true",), timeout_s=1)


async def test_the_port_and_nothing_else(backend: ContainerBackend, http_port: int) -> None:
    sandbox = await backend.create(SandboxSpec(loopback_ports=(http_port,)))
    fetch = "exec 9<>/dev/tcp/127.0.0.1/{}; echo 'GET / HTTP/1.0' >&9; echo >&9; cat <&9"
    answer = await sandbox.exec(("bash", "-c", fetch.format(http_port)), timeout_s=60)
    assert answer.stdout.endswith(b"hello"), answer.stderr
    assert b"refused" in (await sandbox.exec(("bash", "-c", fetch.format(22)), timeout_s=60)).stderr
    away = await sandbox.exec(("bash", "-c", "exec 9<>/dev/tcp/1.1.1.1/80"), timeout_s=60)
    assert b"unreachable" in away.stderr
    await sandbox.close()


async def test_no_privileges_and_no_host(backend: ContainerBackend, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    sandbox = await backend.create(SandboxSpec())
    look = f"grep -E 'CapEff|NoNewPrivs' /proc/self/status; id -u; ls {tmp_path} /root /work; touch /usr/x /x; ls /proc"
    result = await sandbox.exec(sh(look), timeout_s=60)
    lines = result.stdout.decode().split()
    assert lines[:4] == ["CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    assert int(lines[4]) not in (0, 1000)
    assert result.stderr.count(b"Read-only") == 2 or result.stderr.count(b"ermission denied") >= 1, result.stderr
    assert len([line for line in lines if line.isdigit()]) < 8, "only its own processes"
    await sandbox.close()


async def test_timeouts_and_cancelling_kill_everything(backend: ContainerBackend, client: str) -> None:
    sandbox = await backend.create(SandboxSpec())
    result = await sandbox.exec(sh("trap '' TERM; echo up; (sleep 600 &) ; sleep 600"), timeout_s=20.0)
    assert (result.exit_code, result.timed_out, result.stdout) == (-9, True, b"up\n")
    assert containers(client) == []
    background = await sandbox.start(("sleep", "60"))
    await background.kill()
    assert (await background.wait(20)).exit_code < 0
    for delay_s in (0.0, 0.1, 1.0):
        running = asyncio.create_task(sandbox.exec(("sleep", "60"), timeout_s=60))
        await asyncio.sleep(delay_s)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await sandbox.close()
    assert containers(client) == []


async def test_limits(backend: ContainerBackend) -> None:
    limits = SandboxLimits(memory_bytes=64 << 20, pids=30, disk_bytes=20 << 20)
    sandbox = await backend.create(SandboxSpec(limits=limits))
    bomb = await sandbox.exec(sh("for i in $(seq 60); do sleep 600 & done; echo all"), timeout_s=60)
    assert bomb.stdout != b"all\n" and b"fork" in bomb.stderr, bomb
    hog = await sandbox.exec(sh("head -c 200000000 /dev/zero > x; exec 2>/dev/null; cat x x | head -c 1"), timeout_s=60)
    assert hog.exit_code != 0 or (await sandbox.exec(sh("ls -s x"), timeout_s=60)).stdout != b""
    filler = "for i in $(seq 40); do head -c 1000000 /dev/zero > f$i; sleep 0.05; done; sleep 600"
    filled = await sandbox.exec(sh(filler), timeout_s=120)
    assert "disk_limit" in {finding.kind for finding in filled.findings}
    await sandbox.close()


async def test_read_only_mounts(backend: ContainerBackend, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "tool").write_text("content")
    sandbox = await backend.create(
        SandboxSpec(readonly_mounts=(Mount(source=str(tmp_path / "agent"), target="/opt/agent"),))
    )
    result = await sandbox.exec(sh("cat /opt/agent/tool; echo x > /opt/agent/tool || echo no"), timeout_s=60)
    assert result.stdout == b"contentno\n"
    await sandbox.close()


OWNER = """
import asyncio, sys
from longrein.sandboxes.base import SandboxSpec
from longrein.sandboxes.container import ContainerBackend

async def main():
    sandbox = await ContainerBackend(sys.argv[1], "longrein-test", root=sys.argv[2]).create(SandboxSpec())
    await sandbox.start(("sleep", "600"))
    await asyncio.sleep(2)
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_leftovers_of_a_killed_owner_are_reaped(client: str, root: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", OWNER, client, str(root)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    try:
        assert ContainerClient(client).reap_leftovers() == (), "a living owner's container is not touched"
        assert len(containers(client)) == 1
    finally:
        process.kill()
        process.communicate()
    assert len(ContainerClient(client).reap_leftovers()) == 1
    assert containers(client) == []


def test_a_client_without_the_image_says_so(client: str) -> None:
    with pytest.raises(ConfigError, match="no-such-image"):
        choose_backend("podman" if client == "podman" else "docker", image="no-such-image")


async def test_an_image_that_cannot_run_is_an_error(client: str, root: Path) -> None:
    sandbox = await ContainerBackend(client, "no-such-image", root=str(root)).create(SandboxSpec())
    with pytest.raises(SandboxError, match=client):
        await sandbox.exec(("true",), timeout_s=60)
    await sandbox.close()


def test_backends_travel(client: str) -> None:
    assert isinstance(pickle.loads(pickle.dumps(ContainerBackend(client, "x"))), ContainerBackend)
