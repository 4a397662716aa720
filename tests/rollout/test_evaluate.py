"""Intervals and pass@k of the held-out judgement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrein.errors import ConfigError
from longrein.rollout.evaluate import mean_interval, paired_difference, pass_rates, report
from longrein.types import Rollout
from tests.traces import call, failed, rollout


def solved(values: Sequence[Sequence[float | None]]) -> list[list[Rollout]]:
    return [
        [
            rollout(f"{i}-{j}", [call(0, None, [1], [2])], value) if value is not None else failed("x")
            for j, value in enumerate(task)
        ]
        for i, task in enumerate(values)
    ]


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4), min_size=1, max_size=5), st.integers(1, 4)
)
def test_pass_at_k_is_the_share_of_subsets_with_a_success(values: list[list[float]], k: int) -> None:
    """Against brute force over all subsets of k samples."""
    subsets = [[max(subset) for subset in combinations(task, k)] for task in values]
    expected = sum(sum(s) / len(s) for s in subsets) / len(subsets)
    got = report([str(i) for i in range(len(values))], solved(values), [k])
    assert got.pass_at[k] == pytest.approx(expected)


def test_unscorable_rollouts_are_counted_and_left_out() -> None:
    got = report(["a", "b"], solved([[1.0, None], [0.0, 0.0]]), [1])
    assert got.unscorable == 1
    assert got.reward.mean == 0.5
    assert got.statuses == {"completed": 3, "failed": 1}


def test_no_success_in_96_does_not_claim_certainty() -> None:
    interval = mean_interval([0.0] * 96)
    assert interval.mean == 0.0 == interval.low
    assert 0.01 < interval.high < 0.08


def test_interval_shrinks_with_tasks_and_unbounded_rewards_are_not_padded() -> None:
    few, many = mean_interval([0.0, 1.0] * 8), mean_interval([0.0, 1.0] * 200)
    assert many.high - many.low < few.high - few.low
    assert mean_interval([5.0, 5.0, 5.0]).high == 5.0
    assert mean_interval([]).high == math.inf


def test_paired_difference_sees_what_unpaired_intervals_hide() -> None:
    before = report([str(i) for i in range(8)], solved([[i / 10] for i in range(8)]), [1])
    after = report([str(i) for i in range(8)], solved([[i / 10 + 0.1] for i in range(8)]), [1])
    difference = paired_difference(after, before)
    assert difference.mean == pytest.approx(0.1)
    assert difference.above_zero
    same = paired_difference(before, before)
    assert not same.above_zero
    other = report(["z"], solved([[1.0]]), [1])
    with pytest.raises(ConfigError, match="different tasks"):
        paired_difference(after, other)


def test_pass_rates_are_told_by_kind_of_task() -> None:
    rates = pass_rates(["a/1", "b/2", "a/1", "", "c/1"], [[1.0, 0.5], [None, 1.0], [0.0, None], [1.0, 1.0], [None]])
    assert rates == {"a/1": 1 / 3, "b/2": 1.0}
