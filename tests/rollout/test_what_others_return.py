"""What somebody else's adapter, session or tool returns or raises ends its own rollout at most, never the worker."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from longrein.gateway.session import SessionRecord
from longrein.rollout.attempt import Attempt, Ending, concluded
from longrein.rollout.tool_loop import ToolLoop
from longrein.sessions.heard import as_text
from longrein.types import Score, Trace
from tests.gateway.rig import rig, say
from tests.rollout.environments import CountingFactory, CountingSession, add, calls
from tests.rollout.test_white_box import LOOPS, TASK, PlainLoop, run
from tests.traces import call

TRACE = Trace(session_id="r", calls=(call(0, None, [1], [2]),))


class Garbling:
    """Runs the loop, and returns its result with something else in it."""

    def __init__(self, changes: dict[str, Any]) -> None:
        self.changes = changes

    def run_white_box(self, model_step: Any, session: Any, limits: Any = None) -> Any:
        result = PlainLoop().run_white_box(model_step, session, limits)
        for name, value in self.changes.items():
            setattr(result, name, value)
        return result


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": None},
        {"messages": [5]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
        {"metrics": None},
        {"tool_trace": None},
        {"tool_trace": [5]},
        {"events": [5]},
    ],
)
async def test_a_garbled_result_is_a_fault_that_names_the_adapter(changes: dict[str, Any]) -> None:
    factory = CountingFactory()
    async with rig([]) as r:
        rollout = await run(r, factory, [say("done")], Garbling(changes))
    assert rollout.failure is not None and rollout.failure.kind == "session" and rollout.score.reward is None
    assert "reading what Garbling.run_white_box() returned failed" in rollout.failure.message
    assert factory.sessions[0].closed == 1


class Leaving:
    def run_white_box(self, model_step: Any, session: Any, limits: Any = None) -> Any:
        sys.exit(4)


async def test_an_adapter_that_exits_ends_its_rollout_alone() -> None:
    async with rig([]) as r:
        rollout = await run(r, CountingFactory(), [say("done")], Leaving())
    assert rollout.failure is not None and "Leaving.run_white_box() called exit(4)" in rollout.failure.message


class OddTools(CountingFactory):
    """``add`` gives or raises what the test says."""

    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self.outcome = outcome

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> CountingSession:
        session = super().create(task, seed, episode_id)
        whole = session.call_tool

        def call_tool(name: str, arguments: dict[str, Any]) -> Any:
            result = whole(name, arguments)
            if isinstance(self.outcome, BaseException):
                raise self.outcome
            result.data = self.outcome
            return result

        session.call_tool = call_tool  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize("adapter", LOOPS)
async def test_a_tool_that_exits_is_told_to_the_model(adapter: Any) -> None:
    """The model chooses its arguments: it must not be able to end the worker by them."""
    async with rig([]) as r:
        rollout = await run(r, OddTools(SystemExit(2)), [calls(add(1)), say("sorry")], adapter)
    assert rollout.failure is None and rollout.score.reward == 1.0 and rollout.metrics["tool_errors"] == 1.0
    assert "the tool called exit(2)" in rollout.trace.calls[1].messages[0]["content"]


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "nope.txt"),
        PermissionError("not yours"),
        OSError(36, "File name too long", "x" * 300),
    ],
)
async def test_a_path_that_is_none_is_told_to_the_model(error: OSError) -> None:
    async with rig([]) as r:
        rollout = await run(r, OddTools(error), [calls(add(1)), say("sorry")], ToolLoop())
    assert rollout.failure is None and rollout.score.reward == 1.0 and rollout.metrics["tool_errors"] == 1.0


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), OSError(113, "No route to host"), TimeoutError()])
async def test_a_connection_that_is_lost_is_a_fault(error: OSError) -> None:
    async with rig([]) as r:
        rollout = await run(r, OddTools(error), [calls(add(1)), say("sorry")], ToolLoop())
    assert rollout.failure is not None and "lost its environment" in rollout.failure.message


async def test_half_a_character_in_a_tools_text_costs_no_rollout() -> None:
    """A file's name that is no UTF-8, say: an agent that makes one must not choose not to be judged."""
    async with rig([]) as r:
        rollout = await run(r, OddTools("name-\udcff"), [calls(add(1)), say("done")], ToolLoop())
    assert rollout.failure is None and rollout.score.reward == 1.0
    assert rollout.trace.calls[1].messages[0]["content"] == "name-?"


def test_data_that_json_cannot_say_is_told_in_words() -> None:
    assert json.loads(as_text({"b": [1], "a": {2}})) == {"a": "{2}", "b": [1]}
    assert as_text({1: "x", "a": (2,)}) == "{1: 'x', 'a': (2,)}"
    assert as_text({(1, 2): 3}) == "{(1, 2): 3}"
    circle: list[Any] = []
    circle.append(circle)
    assert as_text(circle) == "[[...]]"


class OddVerdict(CountingFactory):
    def __init__(self, reward: Any, metrics: Any) -> None:
        super().__init__(reward=reward)
        self.metrics = metrics

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> CountingSession:
        session = super().create(task, seed, episode_id)
        whole = session.verify

        def verify(*arguments: Any) -> Any:
            verdict = whole(*arguments)
            verdict.metrics = self.metrics
            return verdict

        session.verify = verify  # type: ignore[method-assign]
        return session


class Unreadable:
    def __float__(self) -> float:
        raise ZeroDivisionError("oops")


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        pytest.param(10**400, "env_reward=1000", id="huge"),
        pytest.param(10**5000, "ValueError", id="too large for Python to write"),
        (float("inf"), "env_reward=inf"),
        ("1", "env_reward='1'"),
        ([1.0], "env_reward=[1.0]"),
        (Unreadable(), "what CountingSession.verify() returned failed: ZeroDivisionError"),
    ],
)
async def test_a_reward_that_is_none_is_unscorable(reward: Any, says: str) -> None:
    async with rig([]) as r:
        rollout = await run(r, OddVerdict(reward, {}), [say("done")], ToolLoop())
    assert rollout.failure is not None and rollout.failure.kind == "verifier" and rollout.score.reward is None
    assert says in rollout.score.reason


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (float("nan"), "a reward that is no finite number"),
        ("1", "a reward that is no finite number"),
        pytest.param(10**400, "a reward that is no finite number", id="huge"),
        (None, "no reward, and no reason"),
    ],
)
def test_a_verifier_of_somebody_elses_cannot_spoil_a_mean(reward: Any, says: str) -> None:
    ending = Ending()
    ending.record = SessionRecord(trace=TRACE, truncated=False, failure=None, counters={})
    ending.score = Score(reward=reward, metrics={"a": float("inf"), "b": 2})
    rollout = concluded(Attempt(rollout_id="r", group_id="g", task=TASK, seed=0), "r", ending, None, 0.0)
    assert rollout.failure is not None and rollout.failure.kind == "verifier" and rollout.score.reward is None
    assert rollout.failure.message == f"the verifier gave {says}" and rollout.score.metrics == {"b": 2.0}


async def test_metrics_are_the_finite_numbers_under_names_that_can_be_written() -> None:
    odd = {"huge": 10**400, "nan": float("nan"), "text": "1", "list": [1], "yes": True, 3: 4, "\ud800": 5}
    async with rig([]) as r:
        rollout = await run(r, OddVerdict(1.0, odd), [say("done")], ToolLoop())
    assert rollout.score.reward == 1.0 and rollout.score.metrics == {"yes": 1.0, "3": 4.0, "?": 5.0}
