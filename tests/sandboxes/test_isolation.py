"""What a command inside bubblewrap can see, change and reach: its own folders and the listed ports, nothing else."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from longrein.errors import SandboxError
from longrein.sandboxes.base import Sandbox, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.types import Mount
from tests.sandboxes.inside import PYTHON_MOUNTS, python, sh

FETCH = """
import urllib.request
request = urllib.request.Request("http://127.0.0.1:%d/", data=%s)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(len(opener.open(request, timeout=60).read()))
"""


async def said(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(sh(script), timeout_s=20)
    return result.stdout.decode()


async def test_the_hosts_files_are_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    hidden = ["/root", "/work", "/var", "/opt", "/srv", "/mnt", "/sys", "/run", "/boot"]
    hidden += [
        "/etc/shadow",
        "/etc/ssh",
        "/etc/machine-id",
        "/etc/resolv.conf",
        str(secret),
        str(Path(__file__).parent),
    ]
    shown = {mount.target for mount in PYTHON_MOUNTS}
    for path in hidden:
        if not any(Path(target).is_relative_to(path) for target in shown):
            assert await said(sandbox, f"ls -d {path} 2>/dev/null") == "", path
    # The folders above a mount are there, and hold nothing but the way to it.
    for mount in PYTHON_MOUNTS:
        parent = Path(mount.target).parent
        assert (await said(sandbox, f"ls -A {parent}")).split() == [Path(mount.target).name]


async def test_the_environment_is_clean(bubblewrap: BubblewrapBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_SECRET", "s3cret")
    sandbox = await bubblewrap.create(SandboxSpec(env={"FROM_SPEC": "1"}))
    result = await sandbox.exec(("env",), env={"FROM_EXEC": "2"}, timeout_s=20)
    variables = dict(line.split("=", 1) for line in result.stdout.decode().splitlines())
    await sandbox.close()
    assert variables.pop("FROM_SPEC") == "1"
    assert variables.pop("FROM_EXEC") == "2"
    assert variables["HOME"] == sandbox.home
    assert set(variables) - {"PWD"} == {
        *("PATH", "HOME", "TMPDIR", "LANG", "TERM", "USER"),
        *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
    }


async def test_only_private_folders_are_writable(bubblewrap: BubblewrapBackend) -> None:
    sandbox = await bubblewrap.create(SandboxSpec(folders=("/logs/verifier",), readonly_mounts=PYTHON_MOUNTS))
    for folder in (sandbox.workdir, sandbox.home, "/tmp", "/logs/verifier", "/dev/shm"):
        assert await said(sandbox, f"touch {folder}/x && echo ok") == "ok\n", folder
    for folder in (
        "/",
        "/usr",
        "/usr/bin",
        "/etc",
        "/dev",
        "/home",
        "/logs",
        "/proc",
        *(m.target for m in PYTHON_MOUNTS),
    ):
        assert await said(sandbox, f"touch {folder}/x 2>/dev/null && echo ok") == "", folder
    for file in ("/etc/passwd", "/usr/bin/env", "/etc/hosts"):
        assert await said(sandbox, f"(echo x >> {file}) 2>/dev/null && echo ok") == "", file
    await sandbox.close()


async def test_processes_have_no_privileges_and_an_unprivileged_outer_uid(sandbox: Sandbox) -> None:
    status = await said(sandbox, "grep -E 'Cap|NoNewPrivs' /proc/self/status")
    assert {line.split()[1] for line in status.splitlines() if line.startswith("Cap")} == {"0" * 16}
    assert "NoNewPrivs:\t1" in status
    process = await sandbox.start(python("import time; open('up','w').close(); time.sleep(60)"))
    owner = await _outer_uid_of_marked_file(sandbox)
    assert owner != 0
    assert owner == os.getuid() or os.getuid() == 0
    await process.kill()


async def _outer_uid_of_marked_file(sandbox: Sandbox) -> int:
    await sandbox.exec(sh("touch mark"), timeout_s=20)
    (mark,) = Path(sandbox._view.layout.session).glob("*/mark")  # type: ignore[attr-defined]
    return mark.stat().st_uid


async def test_other_processes_are_invisible(sandbox: Sandbox) -> None:
    pids = (await said(sandbox, "cd /proc && echo [0-9]*")).split()
    assert len(pids) <= 4
    assert str(os.getpid()) not in pids or os.getpid() < 10


async def test_the_listed_port_and_only_that_is_reachable(bubblewrap: BubblewrapBackend, http_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        sandbox = await bubblewrap.create(SandboxSpec(readonly_mounts=PYTHON_MOUNTS, loopback_ports=(http_port,)))
        allowed = await sandbox.exec(python(FETCH % (http_port, None)), timeout_s=20)
        assert allowed.stdout == b"5\n", allowed.stderr
        large = await sandbox.exec(python(FETCH % (http_port, "b'x' * 5_000_000")), timeout_s=60)
        assert large.stdout == b"5000000\n", large.stderr
        refused = await sandbox.exec(python(FETCH % (other.getsockname()[1], None)), timeout_s=20)
        assert b"refused" in refused.stderr
        outside = "import socket; socket.create_connection(('1.1.1.1', 80), 3)"
        assert b"unreachable" in (await sandbox.exec(python(outside), timeout_s=20)).stderr
        interfaces = await said(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")
        assert interfaces.split() == ["lo"]
        await sandbox.close()


async def test_connections_are_closed_on_both_sides(bubblewrap: BubblewrapBackend) -> None:
    """Half-close: the client ends its side, the server answers after that, and everything is read to the end."""
    import asyncio

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = await reader.read()
        writer.write(got.upper())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sandbox = await bubblewrap.create(SandboxSpec(readonly_mounts=PYTHON_MOUNTS, loopback_ports=(port,)))
    client = (
        f"import socket; s = socket.create_connection(('127.0.0.1', {port})); s.sendall(b'abc'); "
        "s.shutdown(socket.SHUT_WR); print(s.recv(9) + s.recv(9))"
    )
    result = await sandbox.exec(python(client), timeout_s=20)
    assert result.stdout == b"b'ABC'\n", result.stderr
    await sandbox.close()
    server.close()
    await server.wait_closed()


async def test_stdin_is_empty_unless_given(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(("cat",), timeout_s=60)).stdout == b""
    assert (await sandbox.exec(("cat",), stdin=b"hello", timeout_s=60)).stdout == b"hello"


async def test_the_sessions_key_is_in_no_command_line(sandbox: Sandbox) -> None:
    process = await sandbox.start(("sleep", "60"), env={"OPENAI_API_KEY": "k3y-in-env"})
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
    assert not [line for line in lines if b"k3y-in-env" in line]
    await process.kill()


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("mount", "complaint"),
    [
        (Mount(source="/nonexistent", target="/opt/x"), "does not exist"),
        (Mount(source="/usr", target="/workdir/x"), "collides"),
        (Mount(source="/usr", target="/"), "collides"),
        (Mount(source="/usr", target="/tmp"), "collides"),
        (Mount(source="/usr", target="opt/x"), "absolute"),
    ],
)
async def test_mounts_that_cannot_work_are_refused(bubblewrap: BubblewrapBackend, mount: Mount, complaint: str) -> None:
    with pytest.raises(SandboxError, match=complaint):
        await bubblewrap.create(SandboxSpec(readonly_mounts=(mount,)))


async def test_a_single_file_can_be_mounted(bubblewrap: BubblewrapBackend, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("content")
    mount = Mount(source=str(tmp_path / "tool"), target="/opt/tools/tool")
    sandbox = await bubblewrap.create(SandboxSpec(readonly_mounts=(mount,)))
    assert await said(sandbox, "cat /opt/tools/tool") == "content"
    await sandbox.close()


async def test_a_checkout_below_tmp_can_be_mounted(bubblewrap: BubblewrapBackend, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "tool").write_text("content")
    (tmp_path / "secret").write_text("of the host")
    mount = Mount(source=str(tmp_path / "agent"), target="/tmp/checkout/deep/agent")
    sandbox = await bubblewrap.create(SandboxSpec(readonly_mounts=(mount,)))
    for _ in range(2):
        assert await said(sandbox, "cat /tmp/checkout/deep/agent/tool; ls /tmp /tmp/checkout/deep") == (
            "content/tmp:\ncheckout\n\n/tmp/checkout/deep:\nagent\n"
        )
    assert await said(sandbox, "touch /tmp/checkout/deep/agent/tool 2>/dev/null || echo read-only") == "read-only\n"
    assert await said(sandbox, "echo mine > /tmp/mine && cat /tmp/mine && rm /tmp/mine") == "mine\n"
    await sandbox.close()
    assert (tmp_path / "agent" / "tool").read_text() == "content"
