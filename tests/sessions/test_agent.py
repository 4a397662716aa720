"""One attempt: the agent works in its sandbox, dies, and is judged in another."""

from __future__ import annotations

import asyncio
import http.server
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from longrein.errors import HarnessError, SandboxError
from longrein.harnesses.base import Harness
from longrein.harnesses.command import Command
from longrein.sandboxes.base import Sandbox, SandboxBackend, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.leftovers import processes_of
from longrein.sandboxes.local import SubprocessBackend
from longrein.sessions.agent import AgentSession, AgentSessionFactory
from longrein.types import Endpoint, Score, Task
from tests.clock import skip
from tests.sandboxes.inside import until_written
from tests.sandboxes.sticky import Sticky

pytestmark = pytest.mark.filterwarnings("ignore:sandboxes are plain subprocesses:RuntimeWarning")
CHECK = b"""#!/bin/sh
logs="${SANDBOX_ROOT:-}/logs/verifier"
if [ "$(cat answer.txt)" = 42 ]; then echo 1; else echo 0; fi > "$logs/reward.txt"
"""
ASKING = b"""
import os, urllib.request
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data=b"{}")
request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
print(os.environ["TASK_PROMPT"], os.environ["OPENAI_MODEL"], os.getcwd())
open("answer.txt", "wb").write(urllib.request.urlopen(request, timeout=60).read())
"""


@pytest.fixture(params=[BubblewrapBackend, SubprocessBackend])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxBackend:
    made: SandboxBackend = request.param(root=str(tmp_path / f"sandboxes-{tmp_path.name}"))
    return made


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """A model that answers 42 to whoever has the key."""

    class Model(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            allowed = self.path == "/s3cret/v1/chat/completions" and self.headers["Authorization"] == "Bearer s3cret"
            body = b"42" if allowed else b"no"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    port = server.server_port
    url = f"http://127.0.0.1:{port}/s3cret"
    yield Endpoint(base_url=url, api_key="s3cret", model="policy", port=port, context_length=100, max_tokens=10)
    server.shutdown()
    server.server_close()


async def session(harness: Harness, backend: SandboxBackend, endpoint: Endpoint, **task: object) -> AgentSession:
    settings: dict[str, object] = {"agent_timeout_s": 60.0, "tests": {"test.sh": CHECK}, **task}
    made = Task(task_id="t", prompt="find the answer", **settings)  # type: ignore[arg-type]
    factory = AgentSessionFactory(harness=harness, backend=backend)
    return await factory.create(task=made, endpoint=endpoint, session_id="s")


def shell(script: str) -> Command:
    return Command(argv=("sh", "-c", script))


async def test_an_agent_asks_its_model_and_is_judged(
    backend: SandboxBackend, endpoint: Endpoint, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_bytes(ASKING)
    one = await session(Command.python_script(str(tmp_path / "agent.py")), backend, endpoint)
    ended = await one.run()
    assert (ended.exit_code, ended.timed_out) == (0, False), ended.output_tail
    assert ended.output_tail.startswith("find the answer policy /")
    assert await one.verify() == Score(reward=1.0)
    assert await one.verify() == Score(reward=1.0)
    await one.close()
    await one.close()
    assert list((tmp_path / f"sandboxes-{tmp_path.name}").iterdir()) == []


async def test_the_agent_finds_the_tasks_files_and_not_the_tests(backend: SandboxBackend, endpoint: Endpoint) -> None:
    look = 'cat in/number > answer.txt; ls -d "${SANDBOX_ROOT:-}/tests" "${SANDBOX_ROOT:-}/logs" 2>/dev/null; true'
    one = await session(shell(look), backend, endpoint, files={"in/number": b"42"})
    assert (await one.run()).output_tail == ""
    assert await one.verify() == Score(reward=1.0)
    await one.close()


async def test_files_of_the_launch_are_in_home(backend: SandboxBackend, endpoint: Endpoint) -> None:
    harness = Command(
        argv=("$HOME/bin/agent", "$WORKDIR/answer.txt"),
        files={"bin/agent": b'#!/bin/sh\ncat "$SETTINGS" > "$1"\n', "$HOME/.agent/settings": b"42"},
        env={"SETTINGS": "$HOME/.agent/settings"},
    )
    one = await session(harness, backend, endpoint)
    assert (await one.run()).exit_code == 0
    assert await one.verify() == Score(reward=1.0)
    await one.close()


async def test_a_hanging_agent_is_killed_and_still_scored(
    backend: SandboxBackend, endpoint: Endpoint, tmp_path: Path
) -> None:
    script = "trap '' TERM; echo 42 > answer.txt; (setsid sleep 600 &); echo waiting; touch up; sleep 600"
    one = await session(shell(script), backend, endpoint, agent_timeout_s=300.0)
    running = asyncio.create_task(one.run())
    await until_written(one._sandbox, "up")
    skip(300.0)
    started_s = time.monotonic()
    ended = await running
    assert time.monotonic() - started_s < 60
    assert ended.timed_out
    assert ended.output_tail == "waiting\n"
    assert processes_of(f"sandboxes-{tmp_path.name}/longrein-") == set(), "dead before the hidden tests appear"
    assert await one.verify() == Score(reward=1.0)
    await one.close()


async def test_an_agent_that_does_nothing_gets_zero(backend: SandboxBackend, endpoint: Endpoint) -> None:
    one = await session(shell("exit 0"), backend, endpoint)
    assert (await one.run()).exit_code == 0
    assert (await one.verify()).reward == 0.0
    await one.close()


async def test_a_missing_program_is_a_fault_of_ours_but_127_is_not(backend: SandboxBackend, endpoint: Endpoint) -> None:
    one = await session(Command(argv=("no-such-agent",)), backend, endpoint)
    with pytest.raises(HarnessError, match="no-such-agent"):
        await one.run()
    await one.close()
    one = await session(shell("no-such-tool"), backend, endpoint)
    assert (await one.run()).exit_code == 127
    await one.close()


class Flaky:
    """A backend that fails at first, as a busy machine does."""

    def __init__(self, backend: SandboxBackend, failures: int) -> None:
        self.backend = backend
        self.failures = failures
        self.tries = 0

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.tries += 1
        if self.tries <= self.failures:
            raise SandboxError("no space on this machine")
        return await self.backend.create(spec)


async def test_a_sandbox_that_does_not_start_is_tried_again(backend: SandboxBackend, endpoint: Endpoint) -> None:
    one = await session(shell("echo 42 > answer.txt"), Flaky(backend, failures=2), endpoint)
    await one.run()
    assert await one.verify() == Score(reward=1.0)
    await one.close()
    broken = Flaky(backend, failures=99)
    with pytest.raises(SandboxError, match="no space"):
        await session(shell("true"), broken, endpoint)
    assert broken.tries == 3


async def test_folders_that_cannot_be_removed_cost_no_verdict(
    backend: SandboxBackend, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    one = await session(shell("echo 42 > answer.txt"), Sticky(backend), endpoint)
    await one.run()
    assert await one.verify() == Score(reward=1.0)
    await one.close()
    assert "could not be removed" in caplog.text


async def test_the_factory_travels_to_other_processes(backend: SandboxBackend, endpoint: Endpoint) -> None:
    factory = pickle.loads(pickle.dumps(AgentSessionFactory(harness=shell("exit 3"), backend=backend)))
    one = await factory.create(task=Task(task_id="t", prompt="p"), endpoint=endpoint, session_id="s")
    assert (await one.run()).exit_code == 3
    await one.close()
