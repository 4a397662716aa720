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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_the_whole_group_leaves_no_server(number: int) -> None:
    """A closed terminal, say: the owner ends of it, and by that the server does."""
    command = [sys.executable, "-I", str(LEASH), "sleep", "300"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as leash:
        wait_until(lambda: psutil.Process(leash.pid).children())
        (server,) = psutil.Process(leash.pid).children()
        wait_until(lambda: server.name() == "sleep")
        os.kill(leash.pid, number)
        time.sleep(0.3)
        assert leash.stdin
        leash.stdin.close()
        left = psutil.wait_procs([server], timeout=5.0)[1]
        for process in left:
            process.kill()
        assert left == []


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
