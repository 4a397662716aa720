"""The white-box driver: one capture, whole transcripts, every tool call answered, and nothing waited for forever."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from longrein.engines.scripted import Delay, Fault
from longrein.errors import EngineError
from longrein.rollout.attempt import Attempt
from longrein.rollout.tool_loop import ToolLoop
from longrein.rollout.white_box import TurnLimits, WhiteBoxDriver
from longrein.sessions.openenv import OpenEnvSessions, prompt_of
from longrein.sessions.openenv_types import (
    HarnessRolloutResult,
    HarnessRunLimits,
    LLMResponse,
    ModelStepResult,
    ToolTraceEntry,
)
from longrein.types import Rollout, Task
from tests.clock import skip
from tests.gateway.rig import Rig, assert_exact, rig, say, until
from tests.rollout.environments import CountingFactory, add, calls, roles

GONE = Fault(error=EngineError("the engine burnt down"))
TASK = Task(task_id="t", prompt="count", agent_timeout_s=30.0, metadata={"target": 7})


class PlainLoop:
    """A loop as simple as OpenEnv's own: it shows ``data`` alone, runs at most ``a_turn`` calls and stops at once."""

    def __init__(self, a_turn: int = 99) -> None:
        self.a_turn = a_turn

    def run_white_box(self, model_step: Any, session: Any, limits: Any = None) -> HarnessRolloutResult:
        result = HarnessRolloutResult(messages=session.initial_messages())
        tools = session.list_tools()
        for _ in range(limits.max_turns):
            response = model_step(result.messages, tools, dict(limits.sampling)).response
            result.messages.append(response.to_message_dict())
            if not response.tool_calls:
                result.done = True
                return result
            for call in response.tool_calls[: self.a_turn]:
                outcome = session.call_tool(call.name, dict(call.args))
                result.tool_trace.append(ToolTraceEntry(call.name, dict(call.args), outcome))
                content = json.dumps(outcome.data)
                result.messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content})
                if outcome.done:
                    result.done = True
                    return result
        return result


LOOPS = [pytest.param(ToolLoop(), id="ours"), pytest.param(PlainLoop(), id="plain")]


def driver(r: Rig, factory: CountingFactory, adapter: Any, **changes: Any) -> WhiteBoxDriver:
    limits = TurnLimits(
        max_turns=changes.pop("max_turns", 8), max_tokens=changes.pop("max_tokens", 512), temperature=1.0
    )
    sessions = OpenEnvSessions(factory=factory, **changes)
    return WhiteBoxDriver(
        gateway=r.gateway, sessions=sessions, adapter=adapter, limits=limits, max_threads=4, max_retries=0
    )


def attempt(task: Task = TASK, rollout_id: str = "rollout") -> Attempt:
    return Attempt(rollout_id=rollout_id, group_id="g", task=task, seed=12, group_seed=5)


async def run(
    r: Rig, factory: CountingFactory, turns: list[Any], adapter: Any, task: Task = TASK, **changes: Any
) -> Rollout:
    r.engine.tell("rollout", turns)
    return await driver(r, factory, adapter, **changes).run(attempt(task))


@pytest.mark.parametrize("adapter", LOOPS)
async def test_every_turn_is_a_call_of_one_conversation_with_its_exact_tokens(adapter: Any) -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        rollout = await run(r, factory, [calls(add(2), add(3), text="adding"), calls(add(4)), say("9")], adapter)
        assert_exact(rollout.trace, r.engine)
    assert (rollout.status, rollout.score.reward, rollout.failure) == ("completed", 9.0, None)
    assert [call.parent_id for call in rollout.trace.calls] == [None, 0, 1]
    assert {call.role for call in rollout.trace.calls} == {"agent"} and all(c.delivered for c in rollout.trace.calls)
    assert [roles(call.messages) for call in rollout.trace.calls] == [["system", "user"], ["tool", "tool"], ["tool"]]
    assert rollout.score.metrics == {"steps": 3.0}
    assert rollout.metrics["tool_calls"] == 3.0 and rollout.metrics["tool_errors"] == 0.0
    assert [tool["function"]["name"] for tool in rollout.trace.calls[0].tools][:2] == ["add", "finish"]


@pytest.mark.parametrize("adapter", LOOPS)
async def test_verify_sees_every_call_and_the_last_word(adapter: Any) -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        await run(r, factory, [calls(add(2)), calls(("finish", {}), add(9))], adapter)
    session = factory.sessions[0]
    assert roles(session.transcript) == ["system", "user", "assistant", "tool", "assistant", "tool", "tool"]
    wanted = [call["id"] for message in session.transcript for call in message.get("tool_calls", [])]
    answered = [message["tool_call_id"] for message in session.transcript if message["role"] == "tool"]
    assert wanted == answered and session.sum == 2
    assert session.final_state["done"] is True
    assert [entry["tool_name"] for entry in session.final_state["tool_trace"]] == ["add", "finish"]
    assert session.final_state["tool_trace"][0]["result"]["data"] == {"sum": 2}


async def test_create_gets_the_whole_row_the_groups_seed_and_the_episode() -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        await run(r, factory, [say("done")], ToolLoop())
    session = factory.sessions[0]
    assert session.task == {"task_id": "t", "prompt": "count", "target": 7}
    assert (session.seed, session.episode_id) == (5, "rollout")


async def test_factories_that_want_the_prompt_alone_can_have_it() -> None:
    class Prompted(CountingFactory):
        def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
            assert task == "count"
            return super().create({"prompt": task}, seed, episode_id)

    async with rig([]) as r:
        rollout = await run(r, Prompted(), [say("done")], ToolLoop(), task_of=prompt_of)
    assert rollout.failure is None


@pytest.mark.parametrize("adapter", LOOPS)
async def test_tool_errors_are_told_to_the_model(adapter: Any) -> None:
    wrong = calls(("unknown", {}), ("add", {"nothing": 1}), ("refuse", {}), ("close", {}))
    factory = CountingFactory()
    async with rig([]) as r:
        rollout = await run(r, factory, [wrong, say("sorry")], adapter)
    results = [json.loads(message["content"]) for message in rollout.trace.calls[1].messages]
    assert results[0] == {"error": "Unknown tool: unknown"} and results[1] == {"error": "number"}
    assert results[2] == {"data": {"partly": 1}, "error": "not today"} and results[3] == {"error": "'close' is no tool"}
    assert rollout.status == "completed" and rollout.metrics["tool_errors"] == 4.0 and factory.sessions[0].closed == 1


async def test_lost_environment_is_a_fault_and_no_zero() -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        rollout = await run(r, factory, [calls(("fall", {})), say("sorry")], ToolLoop())
    assert rollout.status == "failed" and rollout.score.reward is None
    assert rollout.failure is not None and rollout.failure.kind == "session"
    assert "tool 'fall' lost its environment" in rollout.failure.message and factory.sessions[0].closed == 1


async def test_calls_that_a_loop_leaves_out_are_answered_before_the_model_is_asked_again() -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        rollout = await run(r, factory, [calls(add(1), add(2), add(3)), calls(add(4)), say("5")], PlainLoop(a_turn=1))
        assert_exact(rollout.trace, r.engine)
    second = rollout.trace.calls[1]
    assert roles(second.messages) == ["tool"] * 3
    assert [message["tool_call_id"] for message in second.messages] == [
        call["id"] for call in rollout.trace.calls[0].reply["tool_calls"]
    ]
    assert [call.parent_id for call in rollout.trace.calls] == [None, 0, 1], "what is put in stays where it was"
    assert factory.sessions[0].sum == 5


async def test_limits_of_our_loop_are_told_to_the_model_and_flagged() -> None:
    factory = CountingFactory()
    limits = HarnessRunLimits(max_tool_calls_per_turn=2, max_total_tool_calls=3)

    class Bounded(msgspec.Struct, frozen=True):
        def run_white_box(self, model_step: Any, session: Any, given: Any = None) -> Any:
            return ToolLoop().run_white_box(model_step, session, limits)

    async with rig([]) as r:
        rollout = await run(r, factory, [calls(add(1), add(2), add(3)), calls(add(4), add(5))], Bounded())
    contents = [m["content"] for m in factory.sessions[0].transcript if m["role"] == "tool"]
    assert json.loads(contents[2]) == {"error": "not run: at most 2 calls a turn"}
    assert json.loads(contents[4]) == {"error": "not run: at most 3 calls in all"}
    assert rollout.status == "truncated" and rollout.score.reward == 7.0


@pytest.mark.parametrize("adapter", LOOPS)
async def test_run_out_of_turns_is_truncated_and_judged(adapter: Any) -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        rollout = await run(r, factory, [calls(add(1))], adapter, max_turns=3)
    assert (rollout.status, rollout.score.reward, len(rollout.trace.calls)) == ("truncated", 3.0, 3)


@pytest.mark.parametrize("adapter", LOOPS)
async def test_spent_budget_ends_the_loop_with_nothing_unsampled_in_the_transcript(adapter: Any) -> None:
    factory = CountingFactory()
    async with rig([], max_calls=2) as r:
        rollout = await run(r, factory, [calls(add(1))], adapter)
    assert (rollout.status, rollout.score.reward, len(rollout.trace.calls)) == ("truncated", 2.0, 2)
    assert roles(factory.sessions[0].transcript)[-2:] == ["assistant", "tool"]


@pytest.mark.parametrize("adapter", LOOPS)
async def test_full_context_ends_the_loop(adapter: Any) -> None:
    factory = CountingFactory()
    async with rig([], context_length=2400) as r:
        rollout = await run(r, factory, [calls(add(1), text="x" * 150)], adapter, max_turns=50)
    assert rollout.status == "truncated" and rollout.score.reward == float(rollout.metrics["tool_calls"])
    assert 2 < len(rollout.trace.calls) < 12


async def test_last_word_that_was_cut_off_is_truncated() -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        rollout = await run(r, factory, [say("x" * 100)], ToolLoop(), max_tokens=20)
    assert rollout.trace.calls[0].completion.token_ids.size == 20
    assert rollout.status == "truncated" and rollout.score.reward == 0.0


async def test_prompt_that_never_fits_is_unscorable() -> None:
    async with rig([], context_length=100) as r:
        rollout = await run(r, CountingFactory(), [say("hm")], ToolLoop())
    assert rollout.score.reward is None and rollout.status == "failed" and not rollout.trace.calls


async def test_reply_without_text_goes_through_and_reasoning_stays_in_the_trace() -> None:
    first = {**calls(add(1)), "content": None, "reasoning_content": "one is one"}
    seen: list[ModelStepResult] = []

    class Watching:
        def run_white_box(self, model_step: Any, session: Any, limits: Any = None) -> Any:
            def watched(*arguments: Any) -> ModelStepResult:
                seen.append(model_step(*arguments))
                return seen[-1]

            return ToolLoop().run_white_box(watched, session, limits)

    async with rig([]) as r:
        rollout = await run(r, CountingFactory(), [first, say("1")], Watching())
        assert_exact(rollout.trace, r.engine)
    assert rollout.trace.calls[1].parent_id == 0
    for step, call in zip(seen, rollout.trace.calls, strict=True):
        assert isinstance(step.response, LLMResponse) and isinstance(step.response.content, str)
        assert step.prompt_ids == rollout.trace.prompt_ids(call).tolist()
        assert step.completion_ids == call.completion.token_ids.tolist()
        np.testing.assert_array_equal(np.asarray(step.logprobs, np.float32), call.completion.logprobs)


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (None, "gave no env_reward"),
        (float("nan"), "env_reward=nan"),
        ("lots", "env_reward='lots'"),
        (ZeroDivisionError("oops"), "verify() failed: ZeroDivisionError: oops"),
    ],
)
async def test_verdict_that_is_no_number_is_unscorable(reward: Any, says: str) -> None:
    async with rig([]) as r:
        rollout = await run(r, CountingFactory(reward=reward), [say("done")], ToolLoop())
    assert rollout.score.reward is None and says in rollout.score.reason
    assert rollout.failure is not None and rollout.failure.kind == "verifier"


async def test_failed_engine_is_not_judged() -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        rollout = await run(r, factory, [calls(add(1)), GONE], ToolLoop())
    assert rollout.failure is not None and rollout.failure.kind == "engine"
    assert "burnt down" in rollout.failure.message
    assert rollout.score.reward is None and factory.sessions[0].transcript == [] and factory.sessions[0].closed == 1


async def test_event_loop_goes_on_while_tools_block_and_a_session_has_one_thread() -> None:
    factory = CountingFactory(nap_s=60.0)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += bool(factory.sessions) and factory.sessions[0].napping.is_set()
            if ticks > 5:
                factory.sessions[0].awake.set()

    async with rig([]) as r:
        ticking = asyncio.create_task(tick())
        rollout = await run(r, factory, [calls(("nap", {})), say("done")], ToolLoop())
        ticking.cancel()
    assert rollout.failure is None and ticks > 5
    assert len(factory.sessions[0].threads) == 1 and threading.get_ident() not in factory.sessions[0].threads


async def test_hanging_tool_is_left_after_its_time() -> None:
    factory = CountingFactory(nap_s=600.0)
    async with rig([]) as r:
        began = time.monotonic()
        rollout = await run(r, factory, [calls(("nap", {})), say("done")], ToolLoop(), call_timeout_s=3.0)
        assert time.monotonic() - began < 300.0
    assert rollout.failure is not None and "call_tool() did not return within 3 s" in rollout.failure.message
    assert rollout.score.reward is None and factory.sessions[0].closed == 1
    factory.sessions[0].awake.set()
    await until(lambda: not threads_of("rollout"))


async def test_time_that_is_up_ends_the_loop_and_the_rest_is_judged() -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        turns = [calls(add(1)), Delay(seconds=600), say("late")]
        running = asyncio.create_task(run(r, factory, turns, ToolLoop()))
        await until(lambda: len(r.engine.requests) == 2)
        skip(TASK.agent_timeout_s)
        rollout = await running
    assert (rollout.status, rollout.score.reward) == ("timed_out", 1.0)
    assert roles(factory.sessions[0].transcript)[-2:] == ["assistant", "tool"]


@pytest.mark.parametrize("turns", [[Delay(seconds=600), say("late")], [calls(("nap", {})), say("done")]])
async def test_cancelled_driver_closes_the_session_and_its_threads(turns: list[Any]) -> None:
    factory = CountingFactory(nap_s=600.0)
    naps = not isinstance(turns[0], Delay)
    async with rig([]) as r:
        running = asyncio.create_task(run(r, factory, turns, ToolLoop()))
        await until(lambda: r.engine.requests and (not naps or factory.sessions[0].napping.is_set()))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert factory.sessions[0].closed == 1 and "rollout" in r.engine.forgotten
    factory.sessions[0].awake.set()
    await until(lambda: not threads_of("rollout"))


def threads_of(session_id: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if session_id in thread.name]


class Careless:
    """Loops that are wrong in ways of their own."""

    def __init__(self, act: Callable[[Any, Any], Any]) -> None:
        self.act = act

    def run_white_box(self, model_step: Any, session: Any, limits: Any = None) -> Any:
        return self.act(model_step, session)


def bad_message(model_step: Any, session: Any) -> None:
    model_step([{"role": "user", "content": {"no": "text"}}], [], {})


def bad_tool(model_step: Any, session: Any) -> None:
    model_step([{"role": "user", "content": "x"}], [{"description": "nameless"}], {})


def divide(model_step: Any, session: Any) -> None:
    raise ZeroDivisionError("oops")


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (bad_message, "is not a chat completion request"),
        (bad_tool, "not in OpenAI's or MCP's form"),
        (divide, "run_white_box() failed: ZeroDivisionError: oops"),
        (lambda *_: None, "returned a NoneType without messages"),
    ],
)
async def test_adapter_that_is_wrong_is_a_fault_with_its_name(act: Callable[[Any, Any], Any], says: str) -> None:
    async with rig([]) as r:
        rollout = await run(r, CountingFactory(), [say("done")], Careless(act))
    assert rollout.failure is not None and rollout.failure.kind == "session"
    assert says in rollout.failure.message and "Careless" in rollout.failure.message


async def test_bug_of_ours_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def typo(*_: Any) -> None:
        raise AttributeError("a typo of ours")

    factory = CountingFactory()
    async with rig([]) as r:
        monkeypatch.setattr(r.gateway, "complete", typo)
        with pytest.raises(AttributeError, match="a typo of ours"):
            await run(r, factory, [say("done")], ToolLoop())
    assert factory.sessions[0].closed == 1


async def test_many_more_attempts_than_threads_all_end() -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        d = driver(r, factory, ToolLoop())
        names = [f"r{number}" for number in range(20)]
        for name in names:
            r.engine.tell(name, [calls(add(1)), say("done")])
        rollouts = await asyncio.gather(*[d.run(attempt(rollout_id=name)) for name in names])
    assert [rollout.score.reward for rollout in rollouts] == [1.0] * 20
    assert len({message for session in factory.sessions for message in session.threads}) >= 1
