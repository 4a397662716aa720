"""Invariant 3, without ranks: the gradient of a step does not depend on how its rollouts were cut."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from longrein.errors import BatchError
from longrein.train.batch import (
    Aggregation,
    ModelLimits,
    check_rows,
    fresh_rows,
    micro_batches,
    share_step,
)
from longrein.train.gradient import add_gradient
from longrein.train.objective import ClippedGrpo, CrossEntropy, Objective
from longrein.train.score import PlainHeadScorer
from longrein.types import Row
from tests import tiny
from tests.train.toy import row

LIMITS = ModelLimits(vocab_size=264, context_length=64)


@pytest.fixture(scope="module")
def model() -> Any:
    """GPT-NeoX, since its layer norm stays in float64 (the RMS norm of most others computes in float32)."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny.config("gpt_neox", hidden_size=32, intermediate_size=64)).double()


def gradient(model: Any, rows: list[Row], objective: Objective, aggregation: Aggregation, budget: int) -> torch.Tensor:
    model.zero_grad()
    batches = micro_batches(share_step(rows, aggregation), budget)
    totals = add_gradient(
        model,
        batches,
        scorer=PlainHeadScorer(model.get_output_embeddings(), 1.0, chunk_logits=264 * 7),
        objective=objective,
        backward=lambda loss: loss.backward(),
        around=lambda _index: nullcontext(),
    )
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return torch.cat([*gradients, totals.loss.reshape(1)])


@st.composite
def steps(draw: st.DrawFn) -> list[Row]:
    """A few whole rollouts, one row each."""
    rows: list[Row] = []
    random = np.random.default_rng(draw(st.integers(0, 2**20)))
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.integers(2, 24))
        trained = draw(st.lists(st.integers(1, size - 1), min_size=1, max_size=size - 1, unique=True))
        advantage = draw(st.sampled_from([-1.5, -0.3, 0.7, 2.0]))
        made = row(random.integers(0, 264, size).tolist(), trained, advantage=advantage, rollout_id=f"r{number}")
        # Close to the policy (log 264), so that some tokens are clipped and some are not.
        logprobs = np.where(made.loss_mask, random.normal(-5.6, 0.3, size), 0).astype(np.float32)
        rows.append(msgspec.structs.replace(made, logprobs=logprobs))
    return rows


def forked(draw: Any, rows: list[Row]) -> list[Row]:
    """The same tokens, trained in several rows that share prefixes; then all rows in some order."""
    parts: list[Row] = []
    for item in rows:
        owner = np.array(draw(st.lists(st.integers(0, 2), min_size=item.loss_mask.size, max_size=item.loss_mask.size)))
        for part in range(3):
            mask = item.loss_mask & (owner == part)
            if mask.any():
                end = np.flatnonzero(mask)[-1] + 1 + draw(st.integers(0, 2))
                parts.append(
                    msgspec.structs.replace(
                        item,
                        token_ids=item.token_ids[:end],
                        loss_mask=mask[:end],
                        logprobs=np.where(mask, item.logprobs, 0)[:end],
                    )
                )
    return draw(st.permutations(parts))


@settings(deadline=None, max_examples=25)
@given(data=st.data(), rows=steps(), aggregation=st.sampled_from(["token", "rollout"]), checkpointing=st.booleans())
def test_the_gradient_does_not_depend_on_the_cutting(
    model: Any, data: st.DataObject, rows: list[Row], aggregation: Aggregation, checkpointing: bool
) -> None:
    objective = data.draw(st.sampled_from([ClippedGrpo(epsilon=0.2, epsilon_high=0.3), CrossEntropy()]))
    model.train()
    whole = gradient(model, rows, objective, aggregation, budget=10_000)
    if checkpointing:
        model.activation_checkpointing_enable()
    cut = gradient(model, forked(data.draw, rows), objective, aggregation, budget=data.draw(st.integers(1, 80)))
    if checkpointing:
        model.activation_checkpointing_disable()
    assert torch.linalg.norm(cut - whole) <= 1e-9 * torch.linalg.norm(whole)


def test_shares_are_the_two_means_by_hand() -> None:
    rows = [row([1, 2, 3], [1, 2], rollout_id="a"), row([1, 2], [1], rollout_id="a"), row([1, 2], [1], rollout_id="b")]
    assert [item.share for item in share_step(rows, "token")] == [1 / 4] * 3
    assert [item.share for item in share_step(rows, "rollout")] == [1 / 6, 1 / 6, 1 / 2]


def test_a_weight_multiplies_a_share() -> None:
    rows = [row([1, 2], [1], weight=3.0, rollout_id="a"), row([1, 2], [1], rollout_id="b")]
    assert [item.share for item in share_step(rows, "token")] == [3 / 2, 1 / 2]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(2, 30), min_size=1, max_size=12), st.integers(1, 100))
def test_no_token_is_dropped_and_the_budget_holds(sizes: list[int], budget: int) -> None:
    rows = [row([3] * size, range(1, size), rollout_id=f"r{index}") for index, size in enumerate(sizes)]
    batches = micro_batches(share_step(rows, "token"), budget)
    assert sum(batch.targets.numel() for batch in batches) == sum(size - 1 for size in sizes)
    for batch in batches:
        assert batch.input_ids.numel() <= budget or batch.input_ids.shape[0] == 1
    assert sum(float(batch.shares.sum()) for batch in batches) == pytest.approx(1.0)


NAN = np.array([0.0, np.nan], np.float32)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (row([1, 264], [1]), "264 is outside"),
        (row([-1, 2], [1]), "-1 is outside"),
        (row([1] * 65, [64]), "context of 64"),
        (row([1, 2], []), "no token trains"),
        (row([1, 2], [0]), "first token trains"),
        (row([1, 2], [1], logprobs=NAN), "logprob is not finite"),
        (row([1, 2], [1], logprobs=np.zeros(3, np.float32)), "of one length"),
        (row([1, 2], [1], advantage=float("nan")), "advantage nan"),
        (row([1, 2], [1], weight=float("inf")), "weight inf"),
    ],
)
def test_bad_rows_are_refused_before_the_step(bad: Row, says: str) -> None:
    with pytest.raises(BatchError, match=says) as caught:
        check_rows([row([1, 2], [1]), bad], LIMITS)
    assert "rollout r (group g)" in str(caught.value)


def test_good_rows_pass() -> None:
    check_rows([row([0, 263], [1]), row([1] * 64, [63])], LIMITS)


def test_rows_beyond_the_staleness_bound_are_left_out_and_counted() -> None:
    rows = [row([1, 2], [1], min_policy_version=version, max_policy_version=9) for version in (3, 4, 9)]
    fresh = fresh_rows(rows, policy_version=6, max_staleness=2)
    assert [item.min_policy_version for item in fresh.rows] == [4, 9]
    assert fresh.stale_rows == 1
