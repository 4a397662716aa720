"""Sessions whose tokens were recorded elsewhere: waited for, read, judged; nothing that is missing is made up."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from longrein.errors import ConfigError
from longrein.rollout.attempt import Attempt
from longrein.rollout.group import RewardSettings, score_group
from longrein.rollout.recorded import RecordedElsewhereDriver
from longrein.sessions.openenv import OpenEnvSessions
from longrein.types import Rollout, Task
from tests.clock import skip
from tests.gateway.rig import until
from tests.rollout.environments import CountingFactory, RecordedFactory
from tests.sessions.test_openenv_trace import CALL, answered, entry, two_turns

TASK = Task(task_id="t", prompt="count", agent_timeout_s=30.0)


def out_of_range() -> None:
    raise IndexError("list index out of range")


async def run(factory: Any, task: Task = TASK, version: Any = lambda: 0, **changes: Any) -> Rollout:
    driver = RecordedElsewhereDriver(
        sessions=OpenEnvSessions(factory=factory, **changes),
        vocab_size=1000,
        policy_version=version,
        max_threads=2,
        max_retries=0,
    )
    return await driver.run(Attempt(rollout_id="r", group_id="g", task=task, seed=1))


@pytest.mark.parametrize("fetch", ["fetch_proxy_trace", "fetch_training_trace"])
async def test_recorded_session_is_waited_for_read_and_judged(fetch: str) -> None:
    waited: list[float | None] = []

    def wait(timeout_s: float | None) -> int:
        waited.append(timeout_s)
        return 3

    factory = RecordedFactory(fetch, two_turns(), reward=0.5, wait=wait)
    rollout = await run(factory)
    session = factory.sessions[0]
    assert (rollout.status, rollout.score.reward, len(rollout.trace.calls)) == ("completed", 0.5, 2)
    assert rollout.metrics["exit_code"] == 3.0 and waited == [30.0] and session.closed == 1
    assert session.transcript is not None and [m["role"] for m in session.transcript][-1] == "assistant"
    assert session.transcript[-1]["tool_calls"][0]["id"] == "c2", "the final tool calls are in what verify() sees"


async def test_auxiliary_calls_are_not_in_what_verify_sees() -> None:
    title = entry(
        [8],
        [9],
        request={"messages": [{"role": "user", "content": "Title?"}]},
        response=answered({"content": "A title"}),
    )
    factory = RecordedFactory("fetch_proxy_trace", [title, *two_turns(), title])
    rollout = await run(factory)
    assert [call.role for call in rollout.trace.calls].count("auxiliary") >= 1
    assert "A title" not in str(factory.sessions[0].transcript) and CALL["id"] in str(factory.sessions[0].transcript)


async def test_training_trace_is_preferred() -> None:
    factory = RecordedFactory("fetch_training_trace", two_turns())
    create = factory.create

    def both(*arguments: Any, **named: Any) -> Any:
        session = create(*arguments, **named)
        session.fetch_proxy_trace = out_of_range  # type: ignore[attr-defined]
        return session

    factory.create = both  # type: ignore[method-assign]
    assert (await run(factory)).failure is None


@pytest.mark.parametrize(
    ("trace", "kind", "says"),
    [
        ([entry([1], [2], per_token_logps=[])], "session", "entry 0 of 1 .* 1 sampled tokens with 0"),
        ([entry(..., [2])], "session", "no prompt_token_ids"),
        (None, "session", "is NoneType, not a list"),
        ([], "no_calls", "nothing was recorded"),
        (out_of_range, "session", r"fetch_proxy_trace\(\) failed: IndexError"),
    ],
)
async def test_trace_of_no_use_is_unscorable_with_its_reason(trace: Any, kind: str, says: str) -> None:
    factory = RecordedFactory("fetch_proxy_trace", trace)
    rollout = await run(factory)
    assert rollout.status == "failed" and rollout.score.reward is None and factory.sessions[0].closed == 1
    assert rollout.failure is not None and rollout.failure.kind == kind
    assert re.search(says, rollout.score.reason)


async def test_empty_trace_does_not_skew_its_group() -> None:
    """Rewarded 1 by its verifier, but with nothing to train on: the others are compared among themselves."""
    rollouts = [await run(RecordedFactory("fetch_proxy_trace", two_turns(), reward=reward)) for reward in (1.0, 0.0)]
    rollouts.append(await run(RecordedFactory("fetch_proxy_trace", [], reward=1.0)))
    group = score_group("g", TASK, rollouts, RewardSettings(advantage="group_centred"))
    assert group.rewards == (1.0, 0.0, None) and group.advantages == (0.5, -0.5, 0.0)


async def test_agent_out_of_time_is_judged_by_what_was_recorded() -> None:
    def late(timeout_s: float | None) -> int:
        raise TimeoutError(f"not within {timeout_s} s")

    rollout = await run(RecordedFactory("fetch_proxy_trace", two_turns(), wait=late))
    assert (rollout.status, rollout.score.reward) == ("timed_out", 1.0)


async def test_agent_that_ignores_its_time_is_left() -> None:
    hanging, awake = threading.Event(), threading.Event()

    def hang(timeout_s: float | None) -> int:
        hanging.set()
        awake.wait(600)
        return 0

    factory = RecordedFactory("fetch_proxy_trace", two_turns(), wait=hang)
    running = asyncio.create_task(run(factory, call_timeout_s=60.0))
    await until(hanging.is_set)
    skip(TASK.agent_timeout_s + 60.0)
    rollout = await running
    assert rollout.failure is not None and "wait_for_completion() did not return" in rollout.failure.message
    assert factory.sessions[0].closed == 1
    awake.set()


async def test_versions_are_those_at_the_sessions_start_and_end() -> None:
    version = 4

    def published(timeout_s: float | None) -> int:
        nonlocal version
        version = 6
        return 0

    rollout = await run(RecordedFactory("fetch_proxy_trace", two_turns(), wait=published), version=lambda: version)
    completion = rollout.trace.calls[0].completion
    assert (completion.min_policy_version, completion.max_policy_version) == (4, 6)


async def test_session_without_a_loop_says_what_to_do() -> None:
    factory = CountingFactory()
    with pytest.raises(ConfigError, match=r"no loop of its own.*harness_adapter"):
        await run(factory)
    assert factory.sessions[0].closed == 1


async def test_session_without_a_recording_says_so() -> None:
    with pytest.raises(ConfigError, match="neither fetch_training_trace"):
        await run(RecordedFactory("fetch_something_else", []))


class SlowToMake(RecordedFactory):
    """Makes a session when it is told to, once a time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.make = threading.Semaphore(0)

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
        assert self.make.acquire(timeout=60)
        return super().create(task, seed, episode_id)


async def test_session_that_is_made_too_late_is_closed() -> None:
    factory = SlowToMake("fetch_proxy_trace", two_turns())
    rollout = await run(factory, call_timeout_s=0.05)
    assert rollout.failure is not None and "create() did not return within" in rollout.failure.message
    factory.make.release()
    await until(lambda: factory.sessions and factory.sessions[0].closed == 1)


async def test_factory_and_close_that_raise_are_faults_of_their_own() -> None:
    class NoRoom(CountingFactory):
        def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
            raise RuntimeError("at capacity")

    rollout = await run(NoRoom())
    assert (
        rollout.failure is not None and "NoRoom.create() failed: RuntimeError: at capacity" in rollout.failure.message
    )
    factory = RecordedFactory("fetch_proxy_trace", two_turns())
    create = factory.create

    def unclosable(*arguments: Any, **named: Any) -> Any:
        session = create(*arguments, **named)
        session.close = lambda: 1 / 0  # type: ignore[assignment, method-assign]
        return session

    factory.create = unclosable  # type: ignore[method-assign]
    assert (await run(factory)).score.reward == 1.0


class SlowAndUnclosable(SlowToMake):
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
        session = super().create(task, seed, episode_id)
        closed = session.close

        def close() -> None:
            closed()
            raise SystemExit(1)

        session.close = close
        return session


async def test_a_late_session_that_cannot_be_closed_holds_no_thread() -> None:
    """There are two threads: the third attempt would find none."""
    factory = SlowAndUnclosable("fetch_proxy_trace", two_turns())
    driver = RecordedElsewhereDriver(
        sessions=OpenEnvSessions(factory=factory, call_timeout_s=0.05),
        vocab_size=1000,
        policy_version=lambda: 0,
        max_threads=2,
        max_retries=0,
    )
    for number in range(1, 4):
        rollout = await driver.run(Attempt(rollout_id=f"r{number}", group_id="g", task=TASK, seed=1))
        assert rollout.failure is not None and "create() did not return within" in rollout.failure.message
        factory.make.release()
        await until(lambda number=number: sum(session.closed for session in factory.sessions) == number)
    await until(lambda: driver._threads.used == 0)


@pytest.mark.parametrize("code", [pytest.param(10**400, id="huge"), "x", None, float("nan")])
async def test_an_exit_code_that_is_none_is_left_out(code: Any) -> None:
    rollout = await run(RecordedFactory("fetch_proxy_trace", two_turns(), wait=lambda _: code))
    assert rollout.failure is None and "exit_code" not in rollout.metrics
