"""Rewards and advantages: unscorable is never zero (invariant 4)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from longrein.errors import ConfigError
from longrein.rollout.group import RewardSettings, score_group, transcript
from longrein.views import Outcome
from tests.traces import TASK, call, failed, rollout


def test_failed_rollouts_are_none_and_scored_ones_keep_their_reward() -> None:
    members = [rollout("a", [call(0, None, [1], [2])], 1.0), failed("b"), rollout("c", [call(0, None, [1], [2])], 0.0)]
    group = score_group("g", TASK, members, RewardSettings())
    assert group.rewards == (1.0, None, 0.0)
    assert group.advantages[1] == 0.0
    assert group.advantages[0] == -group.advantages[2] > 0


def test_reward_funcs_get_columns_and_are_added() -> None:
    seen: dict[str, object] = {}

    def brevity(
        completions: list[list[dict[str, str]]], harness_reward: list[float], **columns: object
    ) -> list[float | None]:
        seen.update(columns, harness_reward=harness_reward, completions=completions)
        return [0.25, None]

    trace = [call(0, None, [1], [2]), call(1, 0, [3], [4])]
    group = score_group(
        "g", TASK, [rollout("a", trace, 1.0), rollout("b", trace, 0.5)], RewardSettings(reward_funcs=(brevity,))
    )
    assert group.rewards == (1.25, 0.5)
    assert seen["column"] == [3, 3]
    assert seen["prompts"] == ["do it", "do it"]
    assert seen["harness_reward"] == [1.0, 0.5]


def test_rollout_reward_fn_replaces_the_verifiers_verdict() -> None:
    settings = RewardSettings(rollout_reward_fn=lambda outcome: 2.0 if outcome.status == "completed" else None)
    members = [rollout("a", [], 0.0), rollout("b", [], 0.0, status="timed_out"), rollout("c", [], None)]
    assert score_group("g", TASK, members, settings).rewards == (2.0, None, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_unscorable(bad: float) -> None:
    group = score_group("g", TASK, [rollout("a", [], bad), rollout("b", [], 1.0)], RewardSettings())
    assert group.rewards == (None, 1.0)


def test_a_reward_function_of_the_wrong_length_is_named() -> None:
    def short(**_columns: object) -> list[float]:
        return [1.0]

    with pytest.raises(ConfigError, match="short returned 1 values for 2 rollouts"):
        score_group("g", TASK, [rollout("a", []), rollout("b", [])], RewardSettings(reward_funcs=(short,)))


@pytest.mark.parametrize("bad", [lambda **_: 1 / 0, lambda **_: None, lambda **_: ["good", "bad"]])
def test_whatever_a_reward_function_does_wrong_is_one_error_that_names_it(bad: Callable[..., list[float]]) -> None:
    bad.__name__ = "brevity"
    members = [rollout("a", []), rollout("b", [])]
    with pytest.raises(ConfigError, match=r"reward function brevity failed on task t: \w+Error: .*"):
        score_group("g", TASK, members, RewardSettings(reward_funcs=(bad,)))
    with pytest.raises(ConfigError, match=r"reward function judge failed on task t: KeyError: 'x'"):
        score_group("g", TASK, members, RewardSettings(rollout_reward_fn=judge))


def judge(outcome: Outcome) -> float:
    return outcome.metrics["x"]


def test_the_transcript_is_the_agents_own_conversation_with_its_last_reply() -> None:
    calls = [
        call(0, None, [9], [9, 9, 9, 9], role="auxiliary"),
        call(1, None, [1], [2, 2]),
        call(2, 1, [3], [4, 4]),
    ]
    assert [message["content"] for message in transcript(rollout("a", calls).trace)] == ["r1", "m2", "r2"]
