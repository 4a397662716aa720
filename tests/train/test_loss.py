"""The losses against a plain numpy transcription of their formulas."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.train.loss import MAX_LOG_RATIO, clipped_grpo_loss, cross_entropy_loss

numbers = st.floats(-30, 0, allow_nan=False)
tokens = st.lists(st.tuples(numbers, numbers, st.floats(-3, 3, allow_nan=False)), min_size=1, max_size=20)


def by_hand(new: float, old: float, advantage: float, low: float, high: float) -> float:
    ratio = math.exp(min(max(new - old, -MAX_LOG_RATIO), MAX_LOG_RATIO))
    clipped = min(max(ratio, 1 - low), 1 + high)
    return -min(ratio * advantage, clipped * advantage)


@settings(deadline=None, max_examples=100)
@given(tokens, st.floats(0.05, 0.9), st.floats(0.05, 2))
def test_clipped_grpo_is_its_formula(cases: list[tuple[float, float, float]], low: float, high: float) -> None:
    new, old, advantage = (torch.tensor(column, dtype=torch.float64) for column in zip(*cases, strict=True))
    terms = clipped_grpo_loss(logprobs=new, sampler_logprobs=old, advantages=advantage, epsilon=low, epsilon_high=high)
    np.testing.assert_allclose(terms.losses, [by_hand(*case, low, high) for case in cases], rtol=1e-12)
    np.testing.assert_allclose(terms.log_ratios, new - old)


def test_the_clip_stops_the_gradient_on_the_side_that_is_already_good() -> None:
    new = torch.tensor([math.log(1.5), math.log(1.5), math.log(0.5), math.log(0.5)], requires_grad=True)
    terms = clipped_grpo_loss(
        logprobs=new,
        sampler_logprobs=torch.zeros(4),
        advantages=torch.tensor([1.0, -1.0, 1.0, -1.0]),
        epsilon=0.2,
        epsilon_high=0.3,
    )
    terms.losses.sum().backward()
    assert terms.clipped.tolist() == [True, False, False, True]
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([0.0, 1.5, -0.5, 0.0]))


def test_a_huge_ratio_stays_finite() -> None:
    new = torch.tensor([0.0], requires_grad=True)
    terms = clipped_grpo_loss(
        logprobs=new,
        sampler_logprobs=torch.tensor([-1000.0]),
        advantages=torch.tensor([-1.0]),
        epsilon=0.2,
        epsilon_high=0.2,
    )
    terms.losses.sum().backward()
    assert torch.isfinite(terms.losses).all()
    assert new.grad is not None
    assert new.grad.item() == 0.0


def test_cross_entropy_is_minus_logprob() -> None:
    terms = cross_entropy_loss(logprobs=torch.tensor([-1.0, -2.0]), sampler_logprobs=torch.tensor([-1.5, -2.0]))
    assert terms.losses.tolist() == [1.0, 2.0]
    assert not terms.clipped.any()
