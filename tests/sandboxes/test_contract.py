"""What every backend promises: commands, files, and an end."""

from __future__ import annotations

import asyncio
import pickle
import time
from pathlib import Path

import pytest

from longrein.errors import SandboxError
from longrein.sandboxes.base import SandboxBackend, SandboxLimits, SandboxSpec, WorkFile, WorkTree
from tests.clock import skip
from tests.sandboxes.inside import DAEMON, PYTHON_MOUNTS, left_behind, python, sh, until_written

pytestmark = pytest.mark.filterwarnings("ignore:sandboxes are plain subprocesses:RuntimeWarning")


async def test_exit_codes_and_output(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec(files={"in/a.txt": b"A"}))
    result = await sandbox.exec(sh("cat in/a.txt; echo bad >&2; exit 3"), timeout_s=20)
    assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (3, b"A", b"bad\n", False)
    assert (await sandbox.exec(sh("kill -TERM $$"), timeout_s=20)).exit_code == -15
    assert (await sandbox.exec(("no-such-command",), timeout_s=20)).exit_code == 127
    assert (await sandbox.exec(("pwd",), timeout_s=20)).stdout.decode().strip() == sandbox.workdir
    await sandbox.close()


async def test_whoever_was_cancelled_or_killed_writes_nothing_any_more(backend: SandboxBackend) -> None:
    await assert_no_more_is_written(backend)


async def assert_no_more_is_written(backend: SandboxBackend) -> None:
    """Its work is about to be read."""
    sandbox = await backend.create(SandboxSpec())
    writes = sh("while :; do date +%s.%N > at; : > up; sleep 0.02; done")
    running = asyncio.create_task(sandbox.exec(writes, timeout_s=300))
    await until_written(sandbox, "up")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    left = await sandbox.collect()
    await (await sandbox.start(sh("sleep 0.2; while :; do date +%s.%N > at; sleep 0.02; done"))).kill()
    await asyncio.sleep(0.5)
    assert (await sandbox.collect()).files == left.files
    await sandbox.close()


async def test_files_come_in_and_out(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec(folders=("/logs/verifier", "/tests")))
    await sandbox.write("deep/er/run.sh", b"#!/bin/sh\necho ran\n", executable=True)
    await sandbox.write(f"{sandbox.home}/.config/x", b"x")
    await sandbox.write("/tests/t", b"hidden")
    assert (await sandbox.exec(("./deep/er/run.sh",), timeout_s=20)).stdout == b"ran\n"
    copy = (
        'cp "${SANDBOX_ROOT:-}/tests/t" "${SANDBOX_ROOT:-}/logs/verifier/out"; cat "$HOME/.config/x" > y; cp y deep/er'
    )
    assert (await sandbox.exec(sh(copy), timeout_s=20)).exit_code == 0
    assert await sandbox.read("/logs/verifier/out") == b"hidden"
    assert await sandbox.read("y") == b"x"
    await sandbox.write("y", b"over an agent's file")
    assert await sandbox.read(f"{sandbox.workdir}/y") == b"over an agent's file"
    with pytest.raises(FileNotFoundError):
        await sandbox.read("nothing")
    for outside in ("../x", "/etc/passwd", "/tests/../../etc/passwd", f"{sandbox.home}/../../x"):
        with pytest.raises(SandboxError):
            await sandbox.read(outside)
    await sandbox.close()


async def test_a_folder_may_be_spelled_with_a_slash_and_cannot_be_everything(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec(folders=("/app/", "/app")))
    await sandbox.write("/app/x", b"x")
    assert (await sandbox.exec(sh('cat "${SANDBOX_ROOT:-}/app/x"'), timeout_s=20)).stdout == b"x"
    await sandbox.close()
    for folder in ("/", "//", "app", "/app/../etc"):
        with pytest.raises(SandboxError, match="cannot be a private folder"):
            await backend.create(SandboxSpec(folders=(folder,)))


async def test_a_work_directory_survives_the_move_to_another_sandbox(backend: SandboxBackend) -> None:
    first = await backend.create(SandboxSpec(files={"a": b"1"}))
    script = "mkdir -p d/empty; echo x > d/x; chmod +x d/x; ln -s ../a d/link; ln -s /etc/passwd abs; mkfifo pipe; "
    script += "perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, pack_sockaddr_un(q(socket))) or die'"
    assert (await first.exec(sh(script), timeout_s=20)).exit_code == 0
    tree = await first.collect()
    assert tree == WorkTree(
        files={"a": WorkFile(data=b"1"), "d/x": WorkFile(data=b"x\n", executable=True)},
        symlinks={"abs": "/etc/passwd", "d/link": "../a"},
        folders=("d", "d/empty"),
        special=("pipe", "socket"),
    )
    second = await backend.create(SandboxSpec())
    await second.restore(tree)
    assert (await second.collect()) == WorkTree(files=tree.files, symlinks=tree.symlinks, folders=tree.folders)
    assert (await second.exec(sh("cat d/link && test -x d/x && touch d/empty/y"), timeout_s=20)).exit_code == 0
    await asyncio.gather(first.close(), second.close())


async def test_collect_is_bounded_and_never_fails(backend: SandboxBackend) -> None:
    limits = SandboxLimits(collect_bytes=1000, collect_entries=200)
    sandbox = await backend.create(SandboxSpec(limits=limits))
    script = "head -c 900 /dev/zero > a; truncate -s 1G b; d=deep; for i in $(seq 80); do d=$d/d; done; mkdir -p $d; "
    script += "mkdir locked; touch locked/x; chmod 000 locked; echo small > z"
    assert (await sandbox.exec(sh(script), timeout_s=20)).exit_code == 0
    tree = await sandbox.collect()
    assert {"a", "z"} <= set(tree.files)
    assert "b" in tree.left_out
    assert any(path.startswith("deep/") for path in tree.left_out)
    await sandbox.close()


async def test_symlinks_are_never_followed_from_outside(backend: SandboxBackend, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "secret").write_text("secret")
    sandbox = await backend.create(SandboxSpec())
    script = f"ln -s {tmp_path}/host/secret file; ln -s {tmp_path}/host folder; mkfifo fifo"
    await sandbox.exec(sh(script), timeout_s=20)
    for path in ("file", "folder/secret", "fifo", "."):
        with pytest.raises((FileNotFoundError, SandboxError)):
            await sandbox.read(path)
    with pytest.raises(OSError):
        await sandbox.write("folder/new", b"x")
    await sandbox.write("file", b"mine")
    assert (tmp_path / "host" / "secret").read_text() == "secret"
    assert [path.name for path in (tmp_path / "host").iterdir()] == ["secret"]
    assert await sandbox.read("file") == b"mine"
    await sandbox.close()


async def test_a_timeout_kills_a_daemon_that_ignores_everything(backend: SandboxBackend, root: Path) -> None:
    sandbox = await backend.create(SandboxSpec(readonly_mounts=PYTHON_MOUNTS))
    script = DAEMON + "\nprint('up', flush=True)\nopen('up', 'w').close()\ntime.sleep(600)"
    running = asyncio.create_task(sandbox.exec(python(script), timeout_s=300))
    await until_written(sandbox, "up")
    skip(300)
    started_s = time.monotonic()
    result = await running
    assert (result.exit_code, result.timed_out, result.stdout) == (-9, True, b"up\n")
    assert time.monotonic() - started_s < 60
    assert left_behind(root)["processes"] == []
    await sandbox.close()


async def test_a_daemon_dies_with_the_command_that_left_it(backend: SandboxBackend, root: Path) -> None:
    sandbox = await backend.create(SandboxSpec(readonly_mounts=PYTHON_MOUNTS))
    result = await sandbox.exec(python(DAEMON), timeout_s=20)
    assert (result.exit_code, result.timed_out) == (0, False)
    assert left_behind(root)["processes"] == []
    await sandbox.close()


async def test_background_processes(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    quick = await sandbox.start(sh("echo done; exit 4"))
    slow = await sandbox.start(("sleep", "60"))
    assert (await quick.wait(20)).exit_code == 4
    assert (await slow.wait(0.05)).timed_out
    other = await sandbox.start(("sleep", "60"))
    await other.kill()
    await other.kill()
    assert (await other.wait(20)).exit_code == -9
    await sandbox.close()


async def test_cancelling_an_exec_kills_it(backend: SandboxBackend, root: Path) -> None:
    sandbox = await backend.create(SandboxSpec())
    for delay_s in (0.0, 0.005, 0.2):
        running = asyncio.create_task(sandbox.exec(("sleep", "60"), timeout_s=60))
        await asyncio.sleep(delay_s)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert left_behind(root)["processes"] == []
    await sandbox.close()


async def test_after_close_nothing_is_left_and_nothing_works(
    backend: SandboxBackend, root: Path, http_port: int
) -> None:
    spec = SandboxSpec(readonly_mounts=PYTHON_MOUNTS, loopback_ports=(http_port,), folders=("/tests",))
    sandbox = await backend.create(spec)
    started = [await sandbox.start(python(DAEMON + "\ntime.sleep(600)")) for _ in range(2)]
    await sandbox.exec(sh("mkdir -p $(seq -s/ 3 400); mkdir no; touch no/x; chmod 000 no"), timeout_s=20)
    await asyncio.gather(sandbox.close(), sandbox.close())
    await sandbox.close()
    assert left_behind(root) == {"folders": [], "processes": [], "cgroups": []}
    assert [(await process.wait(20)).exit_code for process in started] == [-9, -9]
    for attempt in (
        sandbox.exec(("true",), timeout_s=1),
        sandbox.read("x"),
        sandbox.write("x", b""),
        sandbox.collect(),
    ):
        with pytest.raises(SandboxError, match="closed"):
            await attempt


async def test_backends_travel_to_other_processes(backend: SandboxBackend) -> None:
    copy: SandboxBackend = pickle.loads(pickle.dumps(backend))
    sandbox = await copy.create(SandboxSpec())
    assert (await sandbox.exec(("true",), timeout_s=20)).exit_code == 0
    await sandbox.close()


async def test_a_word_with_a_nul_is_refused(backend: SandboxBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    for argv, env in ((("echo", "a\0b"), {}), (("true",), {"TASK_PROMPT": "a\0b"}), (("true",), {"A\0B": "c"})):
        with pytest.raises(SandboxError, match="holds a NUL character"):
            await sandbox.exec(argv, env=env, timeout_s=20)
    with pytest.raises(SandboxError, match="is no text"):
        await sandbox.exec(("echo", "\ud800"), timeout_s=20)
    assert (await sandbox.exec(("echo", "\udcff"), timeout_s=20)).stdout == b"\xff\n"
    await sandbox.close()
