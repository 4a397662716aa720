"""The loop-owning driver: agents that do not hear that their session is over are ended, and judged or not by why."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from longrein.engines.base import EngineRequest
from longrein.engines.scripted import Fault, TurnList
from longrein.errors import EngineError, SandboxError
from longrein.harnesses.command import Command
from longrein.rollout import watch
from longrein.rollout.driver import Attempt, LoopOwningDriver
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.leftovers import processes_of
from longrein.sessions.agent import AgentSessionFactory
from longrein.sessions.base import AgentExit
from longrein.types import I32, Endpoint, Score, Task
from tests.clock import skip
from tests.gateway.rig import USER, renderer, rig, rig_of, say, until

GONE = Fault(error=EngineError("the engine burnt down"))


class Stubborn:
    """An agent that asks for ever, whatever it is told, and its own session."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.answers: list[tuple[int, str]] = []
        self.closed = False
        self.cancelled = False
        self.judged = False

    async def create(self, *, task: Task, endpoint: Endpoint, session_id: str) -> Stubborn:
        self.url = f"{endpoint.base_url}/v1/chat/completions"
        self.key = endpoint.api_key
        return self

    async def run(self) -> AgentExit:
        try:
            # Kept open, a connection would be closed as idle where a test skips time.
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
                for number in range(1000):
                    messages = [{"role": "user", "content": f"question {number}"}]
                    async with http.post(self.url, json={"messages": messages, **self.fields}) as answer:
                        self.answers.append((answer.status, await answer.text()))
                    await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError("nobody ended this agent")

    async def verify(self) -> Score:
        self.judged = True
        return Score(reward=1.0)

    async def close(self) -> None:
        self.closed = True


def attempt(rollout_id: str = "rollout", **task: Any) -> Attempt:
    fields = {
        "task_id": "t",
        "prompt": "p",
        "agent_timeout_s": 60.0,
        "tests": {"test.sh": b"echo 1 > /logs/verifier/reward.txt"},
        **task,
    }
    return Attempt(rollout_id=rollout_id, group_id="g", task=Task(**fields), seed=0)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "GRACE_S", 0.1)


@pytest.mark.parametrize("stream", [False, True])
async def test_failed_engine_ends_the_agent_soon_and_nothing_is_judged(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "GRACE_S", 20.0)
    async with rig([]) as r:
        r.engine.tell("rollout", [say("one"), GONE])
        session = Stubborn(stream=stream)
        running = asyncio.create_task(LoopOwningDriver(r.gateway, session, max_retries=0).run(attempt()))
        await until(lambda: len(session.answers) > 2)
        skip(20.0)
        rollout = await running
        assert session.cancelled and session.closed and not session.judged
        assert rollout.status == "failed" and rollout.score.reward is None
        assert rollout.failure is not None and rollout.failure.kind == "engine"
        assert "burnt down" in rollout.failure.message
        # One answer, three tries at the second, and none for what the agent asked afterwards.
        assert len(r.engine.requests) == 4
        assert {status for status, _ in session.answers[2:]} == {503}


async def test_agent_that_does_not_hear_the_final_answer_is_ended_and_judged() -> None:
    async with rig([], max_calls=2) as r:
        r.engine.tell("rollout", [say("one"), say("two"), say("three")])
        session = Stubborn()
        rollout = await LoopOwningDriver(r.gateway, session, max_retries=0).run(attempt())
        assert session.cancelled and session.judged
        assert (rollout.status, rollout.score.reward, rollout.failure) == ("truncated", 1.0, None)
        assert len(rollout.trace.calls) == 2 and {status for status, _ in session.answers} == {200}
        assert rollout.metrics["not_sampled_calls"] >= 16


async def test_attempt_whose_engine_failed_is_made_again() -> None:
    async with rig([], max_calls=1) as r:
        r.engine.tell("rollout", [GONE])
        r.engine.tell("rollout-r1", [say("one")])
        rollout = await LoopOwningDriver(r.gateway, Stubborn(), max_retries=1).run(attempt())
    assert rollout.metrics["retries"] == 1.0 and rollout.status == "truncated" and rollout.score.reward == 1.0


class Yielding(Stubborn):
    """Ends of itself at the first error."""

    async def run(self) -> AgentExit:
        async with aiohttp.ClientSession() as http, http.post(self.url, json={"messages": [USER]}) as answer:
            await asyncio.sleep(0.02)
            return AgentExit(exit_code=answer.status, timed_out=False, output_tail="", duration_s=0.0)


async def test_agent_that_ends_within_the_grace_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "GRACE_S", 60.0)
    async with rig([]) as r:
        r.engine.tell("rollout", [GONE])
        session = Yielding()
        rollout = await LoopOwningDriver(r.gateway, session, max_retries=0).run(attempt())
    assert rollout.metrics["exit_code"] == 503.0 and rollout.status == "failed" and not session.cancelled


class Broken(Stubborn):
    """Fails while it is being ended."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def run(self) -> AgentExit:
        try:
            return await super().run()
        except asyncio.CancelledError:
            raise self.error from None


async def test_what_goes_wrong_while_an_agent_is_ended_is_not_hidden() -> None:
    async with rig([]) as r:
        r.engine.tell("rollout", [GONE])
        driver = LoopOwningDriver(r.gateway, Broken(SandboxError("stuck")), max_retries=0)
        rollout = await driver.run(attempt())
        assert rollout.failure is not None and rollout.failure.kind == "sandbox"
        r.engine.tell("rollout", [GONE])
        with pytest.raises(ZeroDivisionError):
            await LoopOwningDriver(r.gateway, Broken(ZeroDivisionError()), max_retries=0).run(attempt())


async def test_cancelled_driver_ends_the_agent_and_closes_the_session() -> None:
    async with rig([]) as r:
        r.engine.tell("rollout", [say("one")])
        session = Stubborn()
        running = asyncio.create_task(LoopOwningDriver(r.gateway, session).run(attempt()))
        await until(lambda: session.answers)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert session.cancelled and session.closed and "rollout" in r.engine.forgotten


class Faulty(TurnList):
    async def reply(self, request: EngineRequest) -> I32:
        raise KeyError("a bug of ours")


async def test_bug_of_ours_is_raised_soon() -> None:
    async with rig_of(Faulty(renderer())) as r:
        session = Stubborn()
        with pytest.raises(KeyError, match="a bug of ours"):
            await LoopOwningDriver(r.gateway, session, max_retries=0).run(attempt())
        assert session.cancelled, "it was not left to ask its thousand questions"


RETRIES = b"""
import os, subprocess, sys, time, urllib.error, urllib.request
subprocess.Popen(["sleep", "1000"], start_new_session=True)
body = b'{"messages": [{"role": "user", "content": "go"}]}'
while True:
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data=body)
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError:
        time.sleep(0.05)
"""
TELLS = b"""
import os, sys
print("cannot reach", os.environ["OPENAI_BASE_URL"])
sys.exit(3)
"""


def factory(script: bytes, folder: Path) -> AgentSessionFactory:
    file = folder / "agent.py"
    file.write_bytes(script)
    backend = BubblewrapBackend(root=str(folder / f"sandboxes-{folder.name}"))
    return AgentSessionFactory(harness=Command.python_script(str(file)), backend=backend)


async def test_real_process_that_retries_for_ever_is_dead_soon_after_the_engine_failed(tmp_path: Path) -> None:
    async with rig([]) as r:
        r.engine.tell("rollout", [GONE])
        began = time.monotonic()
        driver = LoopOwningDriver(r.gateway, factory(RETRIES, tmp_path), max_retries=0)
        rollout = await driver.run(attempt(agent_timeout_s=300.0))
    assert time.monotonic() - began < 150.0, "half of the agent's own time"
    assert rollout.status == "failed" and rollout.failure is not None and rollout.failure.kind == "engine"
    assert list((tmp_path / f"sandboxes-{tmp_path.name}").iterdir()) == []
    assert processes_of(f"sandboxes-{tmp_path.name}/longrein-") == set()


async def test_key_that_an_agent_prints_is_not_written_down(tmp_path: Path) -> None:
    async with rig([]) as r:
        driver = LoopOwningDriver(r.gateway, factory(TELLS, tmp_path), max_retries=0)
        rollout = await driver.run(attempt())
    assert rollout.failure is not None and "cannot reach http://127.0.0.1" in rollout.failure.message
    assert "/<key>/v1" in rollout.failure.message and "/<key>/v1" in rollout.score.reason


LITTERS = b"""
import os, subprocess, urllib.request
body = b'{"model": "m", "messages": [{"role": "user", "content": "go"}]}'
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data=body)
request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
request.add_header("Content-Type", "application/json")
urllib.request.urlopen(request, timeout=20).read()
subprocess.Popen(["sleep", "60"], start_new_session=True)
open("conftest.py", "w").close()
os.symlink("/etc/" + os.environ["OPENAI_API_KEY"], "out")
"""


async def test_what_was_found_on_run_and_work_is_on_the_rollout(tmp_path: Path) -> None:
    async with rig([]) as r:
        r.engine.tell("rollout", [say("done")])
        driver = LoopOwningDriver(r.gateway, factory(LITTERS, tmp_path), max_retries=0)
        rollout = await driver.run(attempt())
    assert (rollout.failure, rollout.score) == (None, Score(reward=1.0))
    assert [(found.kind, found.detail.rpartition(": ")[2]) for found in rollout.findings] == [
        ("processes_left", "sleep"),
        ("outside_symlink", "out -> /etc/<key>"),
        ("test_shadowing", "conftest.py"),
    ]
