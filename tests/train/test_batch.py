"""Invariant 3, without ranks: the gradient of a step does not depend on how its rollouts were cut."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast, get_args

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from longrein.errors import BatchError
from longrein.train.batch import (
    finite_rows,
    fresh_rows,
    micro_batches,
    share_step,
)
from longrein.train.choose import policy_objective
from longrein.train.gradient import add_gradient
from longrein.train.head_probe import KnownHead, probe_head
from longrein.train.loss_choices import Aggregation
from longrein.train.objective import CrossEntropy, Objective
from longrein.train.reference import KlPenalty
from longrein.train.row_checks import ModelLimits, check_rows
from longrein.train.score import ChunkedScorer
from longrein.types import Row
from tests import tiny
from tests.train.table import choices, objective
from tests.train.toy import row

LIMITS = ModelLimits(vocab_size=264, context_length=64)


@pytest.fixture(scope="module")
def model() -> Any:
    """GPT-NeoX, since its layer norm stays in float64 (the RMS norm of most others computes in float32)."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny.config("gpt_neox", hidden_size=32, intermediate_size=64)).double()


def gradient(model: Any, rows: list[Row], chosen: Objective, aggregation: Aggregation, budget: int) -> torch.Tensor:
    model.zero_grad()
    batches = micro_batches(share_step(rows, aggregation, constant_tokens=30), budget)
    totals = add_gradient(
        model,
        batches,
        scorer=ChunkedScorer(cast(KnownHead, probe_head(model)), 1.0, chunk_logits=264 * 7),
        objective=chosen,
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
        made = row(
            random.integers(0, 264, size).tolist(),
            trained,
            advantage=advantage,
            rollout_id=f"r{number}",
            group_id=f"g{number % 2}",
        )
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


OBJECTIVES: list[Objective] = [
    CrossEntropy(),
    objective(loss="grpo", epsilon_high=0.3),
    objective(loss="cispo"),
    # Bounds of the size that a mean over a rollout has here, so that some rollouts are clipped and some are not.
    objective(loss="gspo", epsilon=0.02, epsilon_high=0.02),
    objective(old_logprobs="recomputed", importance_sampling="token_truncate", importance_sampling_cap=1.1),
    objective(old_logprobs="recomputed", importance_sampling="token_mask", importance_sampling_floor=0.5),
    objective(old_logprobs="recomputed", importance_sampling="sequence_truncate", importance_sampling_cap=1.1),
    objective(loss="reinforce", old_logprobs="recomputed", importance_sampling="sequence_mask"),
]


def near_a_reference() -> Objective:
    torch.manual_seed(1)
    reference = AutoModelForCausalLM.from_config(tiny.config("gpt_neox", hidden_size=32, intermediate_size=64)).double()
    return policy_objective(choices(), KlPenalty(reference, weight=0.5, temperature=1.0))


OBJECTIVES.append(near_a_reference())


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    rows=steps(),
    aggregation=st.sampled_from(get_args(Aggregation)),
    checkpointing=st.booleans(),
)
def test_the_gradient_does_not_depend_on_the_cutting(
    model: Any, data: st.DataObject, rows: list[Row], aggregation: Aggregation, checkpointing: bool
) -> None:
    chosen = data.draw(st.sampled_from(OBJECTIVES))
    model.train()
    whole = gradient(model, rows, chosen, aggregation, budget=10_000)
    if checkpointing:
        model.activation_checkpointing_enable()
    cut = gradient(model, forked(data.draw, rows), chosen, aggregation, budget=data.draw(st.integers(1, 80)))
    if checkpointing:
        model.activation_checkpointing_disable()
    assert torch.linalg.norm(cut - whole) <= 1e-9 * torch.linalg.norm(whole)


@pytest.mark.parametrize(
    ("aggregation", "shares"),
    [
        ("token", [1 / 5, 1 / 5, 1 / 5, 1 / 5]),
        ("rollout", [1 / 9, 1 / 9, 1 / 3, 1 / 3]),
        ("rollout_sum", [1 / 3, 1 / 3, 1 / 3, 1 / 3]),
        ("group", [1 / 8, 1 / 8, 1 / 8, 1 / 2]),
        ("constant", [1 / 30, 1 / 30, 1 / 30, 1 / 30]),
    ],
)
def test_shares_are_the_means_by_hand(aggregation: Aggregation, shares: list[float]) -> None:
    rows = [
        row([1, 2, 3], [1, 2], rollout_id="a"),
        row([1, 2], [1], rollout_id="a"),
        row([1, 2], [1], rollout_id="b"),
        row([1, 2], [1], rollout_id="c", group_id="h"),
    ]
    assert [item.share for item in share_step(rows, aggregation, constant_tokens=10)] == pytest.approx(shares)


def test_no_rows_have_no_shares() -> None:
    for aggregation in get_args(Aggregation):
        assert share_step([], aggregation) == ()


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


def with_array(**arrays: Any) -> Row:
    return msgspec.structs.replace(row([1, 2], [1]), **arrays)


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
        (with_array(token_ids=np.array([1.0, 2.5])), "token_ids has dtype float64, and integer is needed"),
        (with_array(loss_mask=np.array([0, 1])), "loss_mask has dtype int64, and bool is needed"),
        (with_array(logprobs=np.array([0, -1])), "logprobs has dtype int64, and floating is needed"),
        (row([1, 2], [1], advantage=float("nan")), "advantage nan"),
        (row([1, 2], [1], weight=float("inf")), "weight inf"),
    ],
)
def test_bad_rows_are_refused_before_the_step(bad: Row, says: str) -> None:
    with pytest.raises(BatchError, match=says) as caught:
        check_rows([row([1, 2], [1]), bad], LIMITS)
    assert "rollout r (group g)" in str(caught.value)


def test_good_rows_pass() -> None:
    wide = with_array(token_ids=np.array([1, 2], np.int64), logprobs=np.array([0.0, -1.0], np.float64))
    check_rows([row([0, 263], [1]), row([1] * 64, [63]), wide], LIMITS)


def test_a_rollout_with_a_number_that_is_not_finite_is_left_out_whole() -> None:
    rows = [
        row([1, 2], [1], rollout_id="a"),
        row([1, 2], [1], rollout_id="b"),
        row([1, 2], [1], rollout_id="b", logprobs=NAN),
        row([1, 2], [1], rollout_id="c", advantage=float("inf")),
    ]
    finite = finite_rows(rows)
    assert [item.rollout_id for item in finite.rows] == ["a"]
    assert finite.non_finite_rows == 3


def test_rows_beyond_the_staleness_bound_are_left_out_and_counted() -> None:
    rows = [
        row([1, 2], [1], rollout_id=str(version), min_policy_version=version, max_policy_version=9)
        for version in (3, 4, 9)
    ]
    fresh = fresh_rows(rows, policy_version=6, max_staleness=2)
    assert [item.min_policy_version for item in fresh.rows] == [4, 9]
    assert fresh.stale_rows == 1


@given(
    versions=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=4),
    forks=st.lists(st.booleans(), min_size=20, max_size=20),
    bound=st.integers(0, 6),
)
@settings(deadline=None, max_examples=50)
def test_staleness_does_not_look_at_how_a_rollout_forked(
    versions: list[list[int]], forks: list[bool], bound: int
) -> None:
    """Each rollout's calls by version, cut into rows anywhere: it trains whole exactly if its oldest call may."""
    cuts = iter(forks)
    rows: list[Row] = []
    for index, calls in enumerate(versions):
        parts = [[calls[0]]]
        for version in calls[1:]:
            if next(cuts):
                parts.append([])
            parts[-1].append(version)
        rows += [
            row([1, 2], [1], rollout_id=str(index), min_policy_version=min(part), max_policy_version=max(part))
            for part in parts
        ]
    fresh = fresh_rows(rows, policy_version=6, max_staleness=bound)
    may = {str(index) for index, calls in enumerate(versions) if 6 - min(calls) <= bound}
    assert list(fresh.rows) == [item for item in rows if item.rollout_id in may]
    assert fresh.stale_rows == len(rows) - len(fresh.rows)
