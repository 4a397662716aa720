"""A group as TRL's trainer sees it: exact rows, right advantages, and nothing that cannot train."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import BatchError
from longrein.integrations.trl.samples import Sample, SampleRule, group_samples
from longrein.rollout.group import RewardSettings, score_group
from longrein.rows import rows_from_rollout
from longrein.types import Call, Completion, Role, Rollout, RolloutGroup
from tests.traces import TASK, call, call_trees, failed, rollout

ROLES: list[Role] = ["agent", "subagent", "auxiliary"]
WEIGHTS: dict[Role, float] = {"agent": 1.0, "subagent": 0.5, "retry": 1.0, "compaction": 0.0, "auxiliary": 0.0}
RULE = SampleRule(role_weights=WEIGHTS)


def group_of(rollouts: Sequence[Rollout]) -> RolloutGroup:
    named = [msgspec.structs.replace(one, group_id="g000012") for one in rollouts]
    return score_group("g000012", TASK, named, RewardSettings())


@st.composite
def forests(draw: st.DrawFn) -> list[Call]:
    """A random trace of several roles and versions, some answers of which never arrived."""
    calls: list[Call] = []
    for one in draw(call_trees()):
        low = draw(st.integers(0, 3))
        completion = msgspec.structs.replace(
            one.completion, min_policy_version=low, max_policy_version=low + draw(st.integers(0, 1))
        )
        role = draw(st.sampled_from(ROLES))
        calls.append(msgspec.structs.replace(one, completion=completion, role=role, delivered=draw(st.booleans())))
    return calls


@st.composite
def groups(draw: st.DrawFn) -> RolloutGroup:
    rewards = draw(st.lists(st.sampled_from([None, 0.0, 0.25, 1.0]), min_size=2, max_size=4))
    return group_of([rollout(f"r{n}", draw(forests()), reward) for n, reward in enumerate(rewards)])


def trained(calls: Sequence[Call]) -> list[Completion]:
    return [one.completion for one in calls if one.delivered and WEIGHTS[one.role]]


@settings(deadline=None, max_examples=150)
@given(groups())
def test_what_was_sampled_trains_once_with_its_rollouts_advantage_and_nothing_else_does(group: RolloutGroup) -> None:
    made = group_samples(group, RULE)
    for sample in made.samples:
        assert sample.completion_mask.any() and not sample.completion_mask[0]
        assert math.isfinite(sample.advantage) and np.isfinite(sample.old_log_probs).all()
        assert sample.input_ids.shape == sample.completion_mask.shape == sample.old_log_probs.shape
        assert (sample.old_log_probs[sample.completion_mask == 0] == 0).all()
        assert sample.group_id == 12
    scored = [
        (one, advantage)
        for one, reward, advantage in zip(group.rollouts, group.rewards, group.advantages, strict=True)
        if reward is not None
    ]
    expected = sorted(
        (advantage * WEIGHTS[one.role], *one.completion.token_ids.tolist())
        for done, advantage in scored
        for one in done.trace.calls
        if one.delivered and WEIGHTS[one.role]
    )
    assert sum(map(len, expected)) - len(expected) == sum(int(sample.completion_mask.sum()) for sample in made.samples)
    # Each stretch of trained tokens is one call's completion, or several in a row.
    found = sorted(
        (sample.advantage, *sample.input_ids[sample.completion_mask == 1].tolist()) for sample in made.samples
    )
    assert sorted(token for part in expected for token in part[1:]) == sorted(t for part in found for t in part[1:])
    assert {part[0] for part in expected} == {part[0] for part in found}


@settings(deadline=None, max_examples=100)
@given(forests())
def test_all_rows_of_a_rollout_are_as_old_as_its_oldest_trained_token(calls: list[Call]) -> None:
    made = group_samples(group_of([rollout("a", calls, 1.0), rollout("b", [call(0, None, [1], [2])], 0.0)]), RULE)
    rows = rows_from_rollout(rollout("a", calls), advantage=0.0, role_weights=WEIGHTS).rows
    versions = [sample.model_version for sample in made.samples[: len(rows)]]
    assert versions == [min((one.min_policy_version for one in trained(calls)), default=0)] * len(rows)


def test_what_cannot_be_scored_never_enters_nor_moves_the_baseline() -> None:
    done = [rollout("a", [call(0, None, [1], [2])], 1.0), rollout("b", [call(0, None, [1], [3])], 0.0)]
    alone = group_samples(group_of(done), RULE)
    beside = group_samples(group_of([failed("x"), *done, rollout("y", [call(0, None, [1], [4])], None)]), RULE)
    assert [s.advantage for s in beside.samples] == [s.advantage for s in alone.samples]
    assert [s.input_ids.tolist() for s in beside.samples] == [[1, 2], [1, 3]]
    assert beside.counts["unscored_rollouts"] == 2 and beside.counts["failed_sandbox"] == 1


def test_a_rollout_with_a_number_that_is_not_finite_is_left_out_whole() -> None:
    broken = call(0, None, [1], [2])
    completion = msgspec.structs.replace(broken.completion, logprobs=np.full(1, np.nan, np.float32))
    broken = msgspec.structs.replace(broken, completion=completion)
    forked = [broken, call(1, None, [5], [6])]
    made = group_samples(group_of([rollout("a", forked, 1.0), rollout("b", [call(0, None, [1], [3])], 0.0)]), RULE)
    assert [s.input_ids.tolist() for s in made.samples] == [[1, 3]]
    assert made.counts["non_finite_rows"] == 2


def test_a_rollout_of_several_rows_is_counted_once_in_the_numbers_that_trl_averages() -> None:
    forked = rollout("a", [call(0, None, [1], [2]), call(1, None, [5], [6])], 1.0)
    made = group_samples(group_of([forked, rollout("b", [call(0, None, [1], [3])], 0.0)]), RULE)
    first, second, other = made.samples
    assert first.metrics == {"reward": 1.0, "reward_std": 0.5, "rewards/harness_reward": 1.0}
    assert second.metrics == {} and other.metrics["reward"] == 0.0
    assert first.advantage == second.advantage > 0


def test_the_agents_conversation_is_shown_with_each_sample() -> None:
    calls = [call(0, None, [1], [2]), call(1, 0, [3], [4])]
    made = group_samples(group_of([rollout("a", calls, 1.0), rollout("b", calls, 0.0)]), RULE)
    sample: Sample = made.samples[0]
    assert [message["content"] for message in sample.prompt] == ["m0"]
    assert [message["content"] for message in sample.completion] == ["r0", "m1", "r1"]


def test_a_group_without_an_advantage_for_each_rollout_is_refused() -> None:
    group = group_of([rollout("a", [], 1.0), rollout("b", [], 0.0)])
    with pytest.raises(BatchError, match="one of each a rollout"):
        group_samples(msgspec.structs.replace(group, advantages=(0.0,)), RULE)
