"""A step's gradient does not depend on how many ranks computed it, nor on how they share the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.train.loss_choices import Aggregation
from longrein.train.ranks import OneRank
from longrein.types import Row
from tests.train.exact import sharing_rows
from tests.train.rank_pool import Answer, Case, RankPool, Workshop, Wrapper, rank_pool

LOSSES: list[dict[str, Any]] = [
    {"loss": "grpo"},
    {"loss": "cispo", "epsilon": 0.3},
    {"loss": "gspo", "epsilon": 0.02, "epsilon_high": 0.02},
    {"loss": "reinforce", "old_logprobs": "recomputed", "importance_sampling": "sequence_truncate"},
    {"loss": "grpo", "old_logprobs": "recomputed", "importance_sampling": "token_mask", "importance_sampling_cap": 1.3},
]
AGGREGATIONS: list[Aggregation] = ["token", "rollout", "group", "constant"]
cases = st.builds(
    Case,
    rows=sharing_rows(),
    wrapper=st.sampled_from(["ddp", "fsdp2"]),
    changes=st.sampled_from(LOSSES),
    aggregation=st.sampled_from(AGGREGATIONS),
    tree=st.booleans(),
    budget=st.integers(1, 150),
    checkpointing=st.booleans(),
)


@pytest.fixture(scope="module")
def alone() -> Workshop:
    return Workshop(OneRank())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with rank_pool(2, tmp_path_factory.mktemp("pair")) as pool:
        yield pool


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    with rank_pool(4, tmp_path_factory.mktemp("four")) as pool:
        yield pool


def plainly(alone: Workshop, case: Case) -> Answer:
    """By one process: rows as they are, in one micro-batch, nothing wrapped."""
    changes = {"wrapper": "bare", "tree": False, "budget": 10_000, "checkpointing": False}
    return alone.answer(msgspec.structs.replace(case, **changes))


def check(alone: Workshop, pool: RankPool, case: Case) -> None:
    expected, answers = plainly(alone, case), pool.answers(case)
    for answer in answers:
        difference = np.linalg.norm(answer.gradient - expected.gradient)
        assert difference <= 1e-9 * np.linalg.norm(expected.gradient)
        assert answer.loss == pytest.approx(expected.loss, rel=1e-9, abs=1e-12)
        assert answer.measures.keys() == expected.measures.keys()
        for name, value in expected.measures.items():
            assert answer.measures[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
        assert answer.fed_tokens == sum(other.own_tokens for other in answers)


@settings(deadline=None, max_examples=25)
@given(case=cases)
def test_two_ranks_have_the_gradient_of_one(alone: Workshop, pair: RankPool, case: Case) -> None:
    check(alone, pair, case)


@settings(deadline=None, max_examples=15)
@given(case=cases)
def test_four_ranks_have_the_gradient_of_one(alone: Workshop, four: RankPool, case: Case) -> None:
    check(alone, four, case)


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_a_rollout_in_pieces_on_two_ranks_is_one_sequence(alone: Workshop, pair: RankPool, wrapper: Wrapper) -> None:
    draw = np.random.default_rng(0)
    rows = [_piece(draw, number) for number in range(3)]
    case = Case(rows=rows, wrapper=wrapper, changes=LOSSES[2], tree=False, budget=1)
    answers = pair.answers(case)
    assert all(answer.own_tokens for answer in answers)
    check(alone, pair, case)


def test_the_work_is_even(pair: RankPool) -> None:
    """Eight rows with a prompt in common fit in one micro-batch, and are cut all the same."""
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, 264, 30)
    rows = [_row(np.concatenate([prompt, draw.integers(0, 264, 20)]), number) for number in range(8)]
    first, second = pair.answers(Case(rows=rows, wrapper="ddp", changes={}))
    assert first.own_tokens == second.own_tokens == 30 + 4 * 19


def test_a_step_of_one_row_leaves_a_rank_with_nothing_to_add(alone: Workshop, pair: RankPool) -> None:
    row = _row(np.random.default_rng(0).integers(0, 264, 12), 0)
    for wrapper in ("ddp", "fsdp2"):
        case = Case(rows=[row], wrapper=wrapper, changes=LOSSES[2])
        assert sorted(answer.own_tokens for answer in pair.answers(case)) == [0, 11]
        check(alone, pair, case)


def _piece(draw: np.random.Generator, number: int) -> Row:
    """Of one rollout, with nothing in common."""
    return msgspec.structs.replace(_row(draw.integers(0, 264, 10), number), rollout_id="r")


def _row(ids: Any, number: int) -> Row:
    mask = np.arange(ids.size) > 0
    return Row(
        rollout_id=f"r{number}",
        group_id="g",
        token_ids=ids.astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, -5.5, 0.0).astype(np.float32),
        advantage=1.0 - 0.3 * number,
    )
