"""OpenEnv's own classes and the environment of its wheel, on its real server, driven by us."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from longrein.rollout.attempt import Attempt
from longrein.rollout.tool_loop import ToolLoop
from longrein.rollout.white_box import TurnLimits, WhiteBoxDriver
from longrein.sessions.openenv import OpenEnvSessions
from longrein.types import Rollout, Task
from tests.gateway.rig import Rig, assert_exact, rig, say
from tests.rollout.environments import calls, roles

pytestmark = pytest.mark.openenv
TASK = Task(task_id="t", prompt="say something")
ADAPTERS = ["openenv", "ours"]


def adapter(name: str) -> Any:
    from openenv.core.harness import MCPHarnessAdapter

    return {"openenv": MCPHarnessAdapter, "ours": ToolLoop}[name]()


def saying(message: str) -> tuple[str, dict[str, Any]]:
    return ("say", {"message": message})


async def run(r: Rig, factory: Any, turns: list[Any], loop: Any, task: Task = TASK, max_turns: int = 6) -> Rollout:
    r.engine.tell("rollout", turns)
    limits = TurnLimits(max_turns=max_turns, max_tokens=256, temperature=1.0)
    driver = WhiteBoxDriver(
        gateway=r.gateway,
        sessions=OpenEnvSessions(factory=factory),
        adapter=loop,
        limits=limits,
        max_threads=2,
        max_retries=0,
    )
    return await driver.run(Attempt(rollout_id="rollout", group_id="g", task=task, seed=3, group_seed=2))


@pytest.mark.parametrize("name", ADAPTERS)
async def test_echo_environment_through_both_loops(name: str, echo_url: str, page: Any) -> None:
    from openenv.core.harness import ModelStepResult
    from openenv.core.llm_client import LLMResponse

    steps: list[Any] = []

    class Watching:
        def run_white_box(self, model_step: Any, session: Any, limits: Any = None) -> Any:
            def watched(*arguments: Any) -> Any:
                steps.append(model_step(*arguments))
                return steps[-1]

            return adapter(name).run_white_box(watched, session, limits)

    async with rig([]) as r:
        turns = [calls(saying("hello")), calls(saying("ab"), saying("abc")), say("bye")]
        rollout = await run(r, page.EchoFactory(echo_url), turns, Watching())
        assert_exact(rollout.trace, r.engine)
    assert rollout.failure is None and rollout.status == "completed"
    assert rollout.score.reward == pytest.approx(0.3), "the environment's own: 0.1 a letter of the last message"
    assert [call.parent_id for call in rollout.trace.calls] == [None, 0, 1]
    assert '"echoed_message": "hello"' in rollout.trace.calls[1].messages[0]["content"]
    assert rollout.score.metrics == {"step_count": 3.0}
    assert all(isinstance(step, ModelStepResult) and isinstance(step.response, LLMResponse) for step in steps)


@pytest.mark.parametrize("name", ADAPTERS)
async def test_seed_episode_and_row_reach_the_environment(name: str, echo_url: str, page: Any) -> None:
    from openenv.core.harness import StepEnvSessionAdapter

    resets: list[dict[str, Any]] = []
    states: list[Any] = []

    class Told(page.EchoFactory):
        def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> StepEnvSessionAdapter:
            resets.append({"task": task, "seed": seed, "episode_id": episode_id})
            session = super().create(task, seed, episode_id)
            states.append(session._read_state())
            return session

    async with rig([]) as r:
        task = Task(task_id="t", prompt="p", metadata={"answer": [1, 2]})
        rollout = await run(r, Told(echo_url), [calls(saying("x")), say("y")], adapter(name), task)
    assert rollout.failure is None
    assert resets == [{"task": {"task_id": "t", "prompt": "p", "answer": [1, 2]}, "seed": 2, "episode_id": "rollout"}]
    assert states[0]["episode_id"] == "rollout"


@pytest.mark.parametrize("name", ADAPTERS)
async def test_tool_errors_reach_the_model_where_openenvs_loop_would_end(name: str, echo_url: str, page: Any) -> None:
    """An unknown tool, an argument that is missing, and an action that the server refuses."""
    async with rig([]) as r:
        wrong = calls(("shout", {}), ("say", {}), ("say", {"message": [1]}))
        rollout = await run(r, page.EchoFactory(echo_url), [wrong, calls(saying("ok")), say("bye")], adapter(name))
    contents = [message["content"] for message in rollout.trace.calls[1].messages]
    assert contents[0] == '{"error": "Unknown tool: shout"}' and contents[1] == '{"error": "message"}'
    assert "Server error" in contents[2]
    assert rollout.failure is None and rollout.score.reward == pytest.approx(0.2)
    assert rollout.metrics["tool_errors"] == 3.0


def finishing_factory(seen: list[Any]) -> Any:
    """OpenEnv's own base class, with a tool that ends the episode."""
    from openenv.core.env_server.mcp_types import Tool
    from openenv.core.harness import ResourceSession, ResourceSessionFactory, ToolResult, VerifyResult

    class Session(ResourceSession):
        def initial_messages(self) -> list[dict[str, Any]]:
            return [{"role": "user", "content": None}, {"role": "user", "content": "go"}]

        def list_tools(self) -> list[Tool]:
            return [Tool(name=name, description="", input_schema={"type": "object"}) for name in ("look", "finish")]

        def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
            return ToolResult(data=name, done=name == "finish")

        def verify(self, transcript: list[dict[str, Any]], final_state: Any = None) -> VerifyResult:
            seen.append((transcript, final_state))
            return VerifyResult(env_reward=None if "unsure" in str(transcript) else 1.0)

        def close(self) -> None:
            seen.append("closed")

    class Factory(ResourceSessionFactory[Session]):
        def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Session:
            return Session()

    return Factory()


@pytest.mark.parametrize("name", ADAPTERS)
async def test_final_tool_calls_are_in_the_transcript_and_every_one_is_answered(name: str) -> None:
    seen: list[Any] = []
    async with rig([]) as r:
        rollout = await run(r, finishing_factory(seen), [calls(("finish", {}), ("look", {}))], adapter(name))
    (transcript, state), closed = seen
    assert roles(transcript) == ["user", "user", "assistant", "tool", "tool"] and closed == "closed"
    assert [call["id"] for call in transcript[2]["tool_calls"]] == [m["tool_call_id"] for m in transcript[3:]]
    assert state["done"] is True and rollout.status == "completed" and rollout.score.reward == 1.0


@pytest.mark.parametrize("name", ADAPTERS)
async def test_truncation_is_flagged_where_openenvs_loop_is_silent(name: str) -> None:
    seen: list[Any] = []
    async with rig([]) as r:
        rollout = await run(r, finishing_factory(seen), [calls(("look", {}))], adapter(name), max_turns=2)
    assert rollout.status == "truncated" and len(rollout.trace.calls) == 2


@pytest.mark.parametrize("name", ADAPTERS)
async def test_no_reward_stays_none(name: str) -> None:
    async with rig([]) as r:
        rollout = await run(r, finishing_factory([]), [say("unsure")], adapter(name))
    assert rollout.score.reward is None and rollout.failure is not None and rollout.failure.kind == "verifier"


async def test_environment_that_dies_is_a_fault_and_no_zero(echo_folder: Path, echo_url: str, page: Any) -> None:
    from examples.openenv_echo import environment

    with environment(echo_folder) as url:
        factory = page.EchoFactory(url)
        sessions: list[Any] = [await asyncio.to_thread(factory.create, {"prompt": "p"}) for _ in ADAPTERS]
    factory.create = lambda *_, **__: sessions.pop()  # type: ignore[method-assign]
    for name in ADAPTERS:
        async with rig([]) as r:
            rollout = await run(r, factory, [calls(saying("x")), say("y")], adapter(name))
        assert rollout.status == "failed" and rollout.score.reward is None
        assert rollout.failure is not None and "lost its environment" in rollout.failure.message
