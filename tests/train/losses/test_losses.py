"""Each token loss against a plain numpy transcription of its formula: values, gradients, and where bounds bind."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.train.losses.cispo import cispo_loss
from longrein.train.losses.grpo import grpo_loss
from longrein.train.losses.gspo import gspo_loss
from longrein.train.losses.kl import kl_k3
from longrein.train.losses.reinforce import reinforce_loss
from longrein.train.losses.terms import MAX_LOG_RATIO, ClipBounds, PolicyLossFunction, PolicyTokens

Formula = Callable[[float, float, float, float, ClipBounds], float]
"""logprob, old logprob, advantage, logprob without gradient, bounds -> loss of one token."""


def by_hand_grpo(new: float, old: float, advantage: float, _fixed: float, bounds: ClipBounds) -> float:
    ratio = math.exp(min(max(new - old, -MAX_LOG_RATIO), MAX_LOG_RATIO))
    clipped = min(max(ratio, 1 - bounds.epsilon), 1 + bounds.epsilon_high)
    return -min(min(ratio, bounds.delta) * advantage, clipped * advantage)


def by_hand_gspo(new: float, old: float, advantage: float, fixed: float, bounds: ClipBounds) -> float:
    """Of a sequence of one token, whose ratio is the token's own."""
    return by_hand_grpo(new, old, advantage, fixed, bounds)


def by_hand_cispo(new: float, old: float, advantage: float, fixed: float, bounds: ClipBounds) -> float:
    ratio = math.exp(min(max(fixed - old, -MAX_LOG_RATIO), MAX_LOG_RATIO))
    return -min(max(ratio, 1 - bounds.epsilon), 1 + bounds.epsilon_high) * advantage * new


def by_hand_reinforce(new: float, _old: float, advantage: float, _fixed: float, _bounds: ClipBounds) -> float:
    return -advantage * new


LOSSES: list[tuple[PolicyLossFunction, Formula]] = [
    (grpo_loss, by_hand_grpo),
    (gspo_loss, by_hand_gspo),
    (cispo_loss, by_hand_cispo),
    (reinforce_loss, by_hand_reinforce),
]
near = st.floats(-2, 2, allow_nan=False).map(lambda value: round(value, 4) + 1e-5)
numbers = st.floats(-30, 0, allow_nan=False).map(lambda value: round(value, 4))
cases = st.lists(st.tuples(numbers, near, st.floats(-3, 3, allow_nan=False)), min_size=1, max_size=20)
bounds = st.builds(
    ClipBounds,
    epsilon=st.sampled_from([0.05, 0.2, 0.9]),
    epsilon_high=st.sampled_from([0.05, 0.28, 2.0]),
    delta=st.sampled_from([3.5, math.inf]),
)


def tokens(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor) -> PolicyTokens:
    """Every token its own sequence."""
    return PolicyTokens(logprobs=new, old_logprobs=old, advantages=advantages, sequence_log_ratios=(new - old).detach())


def column(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("loss", "formula"), LOSSES, ids=lambda each: each.__name__)
@settings(deadline=None, max_examples=60)
@given(case=cases, bound=bounds)
def test_value_and_gradient_are_the_formulas(
    loss: PolicyLossFunction, formula: Formula, case: list[tuple[float, float, float]], bound: ClipBounds
) -> None:
    new = column([item[0] for item in case]).requires_grad_()
    old = column([item[0] - item[1] for item in case])
    advantages = [item[2] for item in case]
    said = loss(tokens(new, old, column(advantages)), bound)
    said.losses.sum().backward()
    fixed, before = new.tolist(), old.tolist()
    values = [formula(*item, bound) for item in zip(fixed, before, advantages, fixed, strict=True)]
    np.testing.assert_allclose(said.losses.detach(), values, rtol=1e-10, atol=1e-12)
    h = 1e-6
    slopes = [
        (formula(x + h, y, a, x, bound) - formula(x - h, y, a, x, bound)) / (2 * h)
        for x, y, a in zip(fixed, before, advantages, strict=True)
    ]
    assert new.grad is not None
    np.testing.assert_allclose(new.grad, slopes, rtol=1e-5, atol=1e-6)


def test_the_clip_stops_the_gradient_on_the_side_that_is_already_good() -> None:
    new = torch.tensor([math.log(1.5), math.log(1.5), math.log(0.5), math.log(0.5)], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    said = grpo_loss(tokens(new, torch.zeros(4), advantages), ClipBounds(epsilon=0.2, epsilon_high=0.3))
    said.losses.sum().backward()
    assert said.clipped_high.tolist() == [True, False, False, False]
    assert said.clipped_low.tolist() == [False, False, False, True]
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([0.0, 1.5, -0.5, 0.0]))


def test_delta_bounds_what_the_clip_leaves_open() -> None:
    new = torch.tensor([math.log(5.0), math.log(5.0)], requires_grad=True)
    advantages = torch.tensor([-1.0, 1.0])
    said = grpo_loss(tokens(new, torch.zeros(2), advantages), ClipBounds(epsilon=0.2, epsilon_high=0.2, delta=3.0))
    said.losses.sum().backward()
    assert said.losses.tolist() == pytest.approx([3.0, -1.2])
    assert said.clipped_high.tolist() == [True, True]
    assert new.grad is not None
    assert new.grad.tolist() == [0.0, 0.0]


def test_cispo_clips_the_weight_and_keeps_the_gradient() -> None:
    new = torch.tensor([math.log(5.0), math.log(0.1)], requires_grad=True)
    said = cispo_loss(tokens(new, torch.zeros(2), torch.tensor([1.0, -1.0])), ClipBounds(epsilon=0.2, epsilon_high=0.3))
    said.losses.sum().backward()
    assert (said.clipped_high.tolist(), said.clipped_low.tolist()) == ([True, False], [False, True])
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([-1.3, 0.8]))


@pytest.mark.parametrize("loss", [grpo_loss, gspo_loss, cispo_loss])
def test_a_huge_ratio_stays_finite(loss: PolicyLossFunction) -> None:
    new = torch.tensor([0.0], requires_grad=True)
    said = loss(tokens(new, torch.tensor([-1000.0]), torch.tensor([-1.0])), ClipBounds(epsilon=0.2, epsilon_high=0.2))
    said.losses.sum().backward()
    assert torch.isfinite(said.losses).all()
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(numbers, near), min_size=1, max_size=20))
def test_k3_is_its_formula(case: list[tuple[float, float]]) -> None:
    new = column([item[0] for item in case]).requires_grad_()
    difference = np.array([item[1] for item in case])
    costs = kl_k3(new, new.detach() + column(difference.tolist()))
    costs.sum().backward()
    np.testing.assert_allclose(costs.detach(), np.exp(difference) - difference - 1, rtol=1e-9, atol=1e-11)
    assert (costs >= 0).all()
    assert new.grad is not None
    np.testing.assert_allclose(new.grad, 1 - np.exp(difference), rtol=1e-9, atol=1e-10)


def test_k3_is_unbiased_under_the_policy_itself() -> None:
    policy, reference = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    costs = kl_k3(torch.from_numpy(np.log(policy)), torch.from_numpy(np.log(reference))).numpy()
    assert float((policy * costs).sum()) == pytest.approx(float((policy * np.log(policy / reference)).sum()))
