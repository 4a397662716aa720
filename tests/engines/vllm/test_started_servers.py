"""Servers that we start, without vLLM: whoever ends, none of their processes is left, and nobody waits for nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from longrein.engines.vllm.process import ServerProcess
from longrein.engines.vllm.spec import VllmEngineSpec
from longrein.errors import EngineError
from longrein.train.vllm.choose import SyncSettings
from longrein.train.vllm.servers import VllmServers
from tests.engines.vllm import rig

LEASH = Path(sys.modules[ServerProcess.__module__].__file__ or "").with_name("leash.py")


def wait_until(met: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not met():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def sleeping(leash: subprocess.Popen[bytes], count: int = 1) -> list[psutil.Process]:
    """The servers below a leash, once there are so many."""

    def found() -> list[psutil.Process]:
        return [one for one in psutil.Process(leash.pid).children(recursive=True) if one.name() == "sleep"]

    wait_until(lambda: len(found()) == count)
    return found()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_the_whole_group_leaves_no_server(number: int) -> None:
    """A closed terminal, say: the owner ends of it, and by that the server does."""
    command = [sys.executable, "-I", str(LEASH), "sleep", "300"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as leash:
        server = sleeping(leash)[0]
        os.kill(leash.pid, number)
        time.sleep(0.3)
        assert leash.stdin
        leash.stdin.close()
        assert_gone([server])


def assert_gone(processes: list[psutil.Process]) -> None:
    left = psutil.wait_procs(processes, timeout=5.0)[1]
    for process in left:
        process.kill()
    assert left == []


@pytest.mark.parametrize("killed", ["leash", "guard"])
def test_whoever_of_the_two_is_killed_for_certain_no_server_is_left(killed: str) -> None:
    """Nor one of its own processes, which outlive it: vLLM's engines do."""
    with subprocess.Popen(
        [sys.executable, "-I", str(LEASH), "sh", "-c", "sleep 300 & sleep 301; true"], stdin=subprocess.PIPE
    ) as leash:
        servers = sleeping(leash, 2)
        guard = psutil.Process(leash.pid).children()[0]
        os.kill(leash.pid if killed == "leash" else guard.pid, signal.SIGKILL)
        assert_gone([*servers, guard])
        assert leash.wait(5.0) != 0
        assert leash.stdin
        leash.stdin.close()


@pytest.mark.parametrize(
    ("command", "code"),
    [(("true",), 0), (("sh", "-c", "exit 7"), 7), (("sh", "-c", "kill -9 $$"), 137), (("no-such",), 127)],
)
def test_the_leash_ends_as_the_command_did(command: tuple[str, ...], code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-I", str(LEASH), *command], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as leash:
        assert leash.wait(20.0) == code


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    url = f"http://127.0.0.1:{rig.free_port()}"
    process = ServerProcess(("true",), env={}, url=url, model="m", log=tmp_path / "file" / "engine.log")
    with pytest.raises(EngineError, match=r"log .*engine.log cannot be written"):
        process.start(30.0)


def test_secrets_on_its_command_line_and_in_its_log_are_not_told(tmp_path: Path) -> None:
    """vLLM prints its arguments when it starts."""
    command = ("sh", "-c", 'echo "key $0 $1, token $HF_TOKEN"; exit 3', "first-key", "--api-key", "second-key")
    process = ServerProcess(
        command,
        env={"HF_TOKEN": "hf_third"},
        url=f"http://127.0.0.1:{rig.free_port()}",
        model="m",
        log=tmp_path / "engine.log",
    )
    with pytest.raises(EngineError, match=r"--api-key \*\*\* died; .*engine.log") as caught:
        process.start(30.0)
    said = str(caught.value)
    assert "key first-key --api-key, token ***" in said
    assert "second-key" not in said
    assert "hf_third" not in said


@pytest.mark.alone
def test_a_server_that_does_not_come_up_is_told_at_once(tmp_path: Path) -> None:
    """The other one, which takes its time, is not waited for."""
    urls = tuple(f"http://127.0.0.1:{rig.free_port()}" for _ in range(2))
    processes = [
        ServerProcess(command, env={}, url=url, model="m", log=tmp_path / f"{url[-5:]}.log")
        for command, url in zip((("sleep", "300"), ("false",)), urls, strict=True)
    ]
    servers = VllmServers(
        spec=VllmEngineSpec(urls=urls, model="m"),
        sync=SyncSettings(urls=urls, weights_folder=str(tmp_path / "weights")),
        processes=processes,
        start_timeout_s=60.0,
    )
    began_s = time.monotonic()
    with pytest.raises(EngineError, match="false died"):
        servers.start()
    assert time.monotonic() - began_s < 30.0
    servers.stop()
