"""DAPO's overlong punishment (arXiv 2503.14476, eq. 13)."""

from __future__ import annotations

import pickle

import pytest

from longrein.errors import ConfigError
from longrein.rollout.group import RewardSettings, score_group
from longrein.rollout.overlong import OverlongPunishment
from longrein.views import Outcome
from tests.traces import TASK, call, failed, rollout


def by_hand(length: int, longest: int, cache: int) -> float:
    if length <= longest - cache:
        return 0.0
    return ((longest - cache) - length) / cache if length <= longest else -1.0


@pytest.mark.parametrize("length", [1, 6, 7, 8, 9, 10, 11, 30])
def test_a_reward_falls_with_the_length_beyond_the_soft_bound(length: int) -> None:
    """Over all calls of the rollout."""
    trace = [call(0, None, [1], [2] * (length - 1)), call(1, 0, [3], [4])] if length > 1 else [call(0, None, [1], [2])]
    settings = RewardSettings(rollout_reward_fn=OverlongPunishment(max_tokens=10, cache_tokens=4))
    group = score_group("g", TASK, [rollout("a", trace, 1.0), failed("b")], settings)
    assert group.rewards == (pytest.approx(1.0 + by_hand(length, 10, 4)), None)


def test_it_wraps_another_reward_and_travels() -> None:
    punishment = pickle.loads(pickle.dumps(OverlongPunishment(max_tokens=2, cache_tokens=1, reward_fn=nothing)))
    made = rollout("a", [call(0, None, [1], [2, 3, 4])], 1.0)
    outcome = Outcome(task=TASK, status="completed", trace=made.trace, score=made.score, metrics={})
    assert punishment(outcome) is None


def nothing(_outcome: Outcome) -> None:
    return None


@pytest.mark.parametrize(("longest", "cache"), [(4, 0), (4, 5), (0, 1)])
def test_bounds_that_cannot_work_are_refused(longest: int, cache: int) -> None:
    with pytest.raises(ConfigError, match="OverlongPunishment"):
        OverlongPunishment(max_tokens=longest, cache_tokens=cache)
