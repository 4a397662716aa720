"""Starts that fail, engines that die, owners that die: nothing survives, and everybody is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.errors import EngineError
from tests.engines.local.reference import ids, request
from tests.engines.local.stepped import Stepped
from tests.waiting import wait_until


def _named_shared_memory(pid: int) -> list[str]:
    return [
        line
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if "/dev/shm" in line and "(deleted)" not in line
    ]


async def test_stop_leaves_nothing_and_takes_no_time(folder_of: Callable[[str], Path]) -> None:
    process = LocalEngineProcess(LocalEngineConfig(model=str(folder_of("llama"))))
    with pytest.raises(EngineError, match="not running"):
        _ = process.spec
    process.start()
    spec, pid, weights = process.spec, process.pid, process.weights
    folder = Path(spec.socket_path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    client = await spec.connect()
    # Waiting for what is pending would take for ever.
    process.pause()
    pending = asyncio.create_task(client.generate(request("c", ids([1]), max_tokens=1000)))
    await Stepped(process, client).step()
    # The block of weights has no name, so nothing can be left in /dev/shm, whoever dies.
    assert "memfd:longrein-weights" in Path(f"/proc/{pid}/maps").read_text()
    assert _named_shared_memory(pid) == _named_shared_memory(os.getpid()) == []
    await asyncio.wait_for(asyncio.to_thread(process.stop), 60)
    process.stop()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    with pytest.raises(EngineError, match="went away"):
        await pending
    with pytest.raises(EngineError, match="no embedded engine"):
        await spec.connect()
    with pytest.raises(EngineError, match="weights are not"):
        weights.update({}, 1)
    await client.close()


async def test_a_killed_engine_fails_pending_and_new_requests_and_updates(folder_of: Callable[[str], Path]) -> None:
    with LocalEngineProcess(LocalEngineConfig(model=str(folder_of("llama")))) as process:
        client = await process.spec.connect()
        process.pause()
        pending = asyncio.create_task(client.generate(request("c", ids([1]), max_tokens=1000)))
        await Stepped(process, client).step()
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="went away"):
            await asyncio.wait_for(pending, 60)
        with pytest.raises(EngineError, match="went away"):
            await client.generate(request("c", ids([1])))
        with pytest.raises(EngineError, match="went away"):
            await client.info()
        tensors = _parameters(folder_of("llama"))
        with pytest.raises(EngineError, match="exit code -9"):
            process.weights.update(tensors, 1)
        await client.close()


def test_an_engine_that_does_not_answer_a_command_is_not_asked_for_more(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its late answer would be taken for the answer to the next one: weights for taken that are not."""
    with LocalEngineProcess(LocalEngineConfig(model=str(folder_of("llama")))) as process:
        engine = psutil.Process(process.pid)
        monkeypatch.setattr("longrein.engines.local.process._COMMAND_TIMEOUT_S", 0.2)
        engine.suspend()
        with pytest.raises(EngineError, match=r"did not answer within 0\.2 s"):
            process.pause()
        assert not engine.is_running()
        with pytest.raises(EngineError, match="was stopped"):
            process.weights.update(_parameters(folder_of("llama")), 1)


def _parameters(folder: Path) -> dict[str, object]:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())


def test_a_folder_without_a_model_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="not a folder"):
        LocalEngineProcess(LocalEngineConfig(model=str(tmp_path / "nowhere"))).start()
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    process = LocalEngineProcess(LocalEngineConfig(model=str(tmp_path)))
    with pytest.raises(EngineError, match=r"(?s)exit code 1.*nonsense"):
        process.start()


# No main guard: starting the engine must not import this script again.
OWNER = """
import sys, time
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
process = LocalEngineProcess(LocalEngineConfig(model=sys.argv[1]))
process.start()
print(process.pid, process.spec.socket_path, flush=True)
if sys.argv[2] == "wait":
    time.sleep(3600)
"""


@pytest.mark.parametrize("end", ["wait", "leave"])
def test_the_engine_dies_with_its_owner(folder_of: Callable[[str], Path], end: str) -> None:
    """Killed outright, or leaving without a stop."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder_of("llama")), end], stdout=subprocess.PIPE)
    with owner:
        assert owner.stdout is not None
        pid, socket_path = owner.stdout.readline().split()
        if end == "wait":
            owner.kill()
    wait_until(lambda: not psutil.pid_exists(int(pid)))
    assert not Path(socket_path.decode()).parent.exists()
