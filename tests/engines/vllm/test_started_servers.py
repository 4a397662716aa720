"""Servers that we start, without vLLM: whoever ends, none of their processes is left, and nobody waits for nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from longrein.engines.vllm.process import ServerProcess
from longrein.engines.vllm.spec import VllmEngineSpec
from longrein.errors import EngineError
from longrein.train.vllm.choose import SyncSettings
from longrein.train.vllm.servers import VllmServers
from tests.engines.vllm.closed_ports import dead_url
from tests.waiting import LIMIT_S, wait_until

LEASH = Path(sys.modules[ServerProcess.__module__].__file__ or "").with_name("leash.py")


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
    left = psutil.wait_procs(processes, timeout=LIMIT_S)[1]
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
        assert leash.wait(LIMIT_S) != 0
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
        assert leash.wait(LIMIT_S) == code


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with dead_url() as url:
        process = ServerProcess(("true",), env={}, url=url, model="m", log=tmp_path / "file" / "engine.log")
        with pytest.raises(EngineError, match=r"log .*engine.log cannot be written"):
            process.start(LIMIT_S)


def test_secrets_on_its_command_line_and_in_its_log_are_not_told(tmp_path: Path) -> None:
    """vLLM prints its arguments when it starts."""
    command = ("sh", "-c", 'echo "key $0 $1, token $HF_TOKEN"; exit 3', "first-key", "--api-key", "second-key")
    with dead_url() as url:
        process = ServerProcess(command, env={"HF_TOKEN": "hf_third"}, url=url, model="m", log=tmp_path / "engine.log")
        with pytest.raises(EngineError, match=r"--api-key \*\*\* died; .*engine.log") as caught:
            process.start(LIMIT_S)
    said = str(caught.value)
    assert "key first-key --api-key, token ***" in said
    assert "second-key" not in said
    assert "hf_third" not in said


def test_a_server_that_does_not_come_up_is_told_at_once(tmp_path: Path) -> None:
    """The other one, which takes its time, is not waited for."""
    with ExitStack() as stack:
        urls = tuple(stack.enter_context(dead_url()) for _ in range(2))
        processes = [
            ServerProcess(command, env={}, url=url, model="m", log=tmp_path / f"{url[-5:]}.log")
            for command, url in zip((("sleep", "3000"), ("false",)), urls, strict=True)
        ]
        servers = VllmServers(
            spec=VllmEngineSpec(urls=urls, model="m"),
            sync=SyncSettings(urls=urls, weights_folder=str(tmp_path / "weights")),
            processes=processes,
            start_timeout_s=1200.0,
        )
        began_s = time.monotonic()
        with pytest.raises(EngineError, match="false died"):
            servers.start()
        assert time.monotonic() - began_s < 300.0
        servers.stop()
