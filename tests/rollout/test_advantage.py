"""Advantages: the papers' formulas, and unscorable is never zero (invariant 4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from longrein.rollout.advantage import ESTIMATORS, advantages
from longrein.train.normalise import AsGiven, BatchNormalised
from longrein.types import AdvantageName

rewards_or_none = st.lists(st.none() | st.floats(-3, 3), min_size=1, max_size=8)
names = st.sampled_from(sorted(ESTIMATORS))


@given(rewards_or_none, names)
def test_unscorable_rollouts_leave_the_baseline(rewards: list[float | None], name: AdvantageName) -> None:
    """Invariant 4: adding or removing unscorable members changes nobody's advantage."""
    scored = [reward for reward in rewards if reward is not None]
    with_none = advantages(rewards, 1e-4, name)
    without = iter(advantages(scored, 1e-4, name))
    for reward, value in zip(rewards, with_none, strict=True):
        assert value == (0.0 if reward is None else next(without))


def others(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([np.mean(np.delete(rewards, index)) for index in range(rewards.size)])


FORMULAS: dict[AdvantageName, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "group_normalised": lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-4),
    "group_centred": lambda r: r - r.mean(),
    "leave_one_out": lambda r: r - others(r),
    "batch_normalised": lambda r: r - r.mean(),
}


@pytest.mark.parametrize("name", FORMULAS)
@given(st.lists(st.floats(-3, 3).map(lambda value: round(value, 3)), min_size=2, max_size=8, unique=True))
def test_advantages_are_the_papers(name: AdvantageName, rewards: list[float]) -> None:
    np.testing.assert_allclose(advantages(rewards, 1e-4, name), FORMULAS[name](np.array(rewards)), atol=1e-12)


@given(st.floats(-3, 3), st.integers(1, 6), names)
def test_a_group_of_equal_rewards_has_no_advantage(reward: float, size: int, name: AdvantageName) -> None:
    """Exactly none: rounding of a mean would be scaled up by Adam."""
    assert advantages([reward] * size, 1e-4, name) == (0.0,) * size
    assert advantages([reward, None], 1e-4, name) == (0.0, 0.0)


@given(st.lists(st.floats(-3, 3), max_size=12))
def test_a_steps_factor_is_one_over_its_deviation(values: list[float]) -> None:
    assert AsGiven().factor(values) == 1.0
    spread = np.sqrt(np.mean(np.square(values))) if values else 1 - 1e-4
    assert BatchNormalised().factor(values) == pytest.approx(1 / (spread + 1e-4))
