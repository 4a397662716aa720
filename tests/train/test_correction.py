"""The correction between sampler and trainer against plain numpy, on rollouts that forked and were cut apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from longrein.train.losses.terms import MAX_LOG_RATIO
from longrein.types import Row
from tests.train.table import Table, TableScorer, gradient_of, objective, sampled_row, step

ROLLOUTS = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 10]]
"""Places in the table; the first and the third are forked into two rows."""
ADVANTAGES = [1.0, -0.5, 0.8, -1.2]
STALENESS = [0, 0, 1, 2]
random = np.random.default_rng(5)
OLD = random.normal(-2, 0.5, 11).astype(np.float32).astype(np.float64)
NEW = OLD + random.normal(0, 0.5, 11)
RATIO = np.exp(NEW - OLD)


def rows(old: np.ndarray = OLD) -> list[Row]:
    made: list[Row] = []
    for index, ids in enumerate(ROLLOUTS):
        middle = 1 if index % 2 == 0 else len(ids)
        for part in (ids[:middle], ids[middle:]):
            if part:
                made.append(
                    sampled_row(
                        part[0],
                        old[part].tolist(),
                        advantage=ADVANTAGES[index],
                        rollout_id=f"r{index}",
                        min_policy_version=7 - STALENESS[index],
                    )
                )
    return made


def of_rollouts(values: list[float]) -> np.ndarray:
    """One value a rollout -> one a token, in the order of the table; place 0 is no token."""
    return np.concatenate([[0.0], *(np.full(len(ids), value) for ids, value in zip(ROLLOUTS, values, strict=True))])


PRODUCTS = of_rollouts([float(np.prod(RATIO[ids])) for ids in ROLLOUTS])


def inside(weights: np.ndarray, floor: float, cap: float) -> np.ndarray:
    return np.where((weights >= floor) & (weights <= cap), weights, 0.0)


CASES: list[tuple[str, dict[str, float], np.ndarray]] = [
    ("none", {}, np.ones(11)),
    ("token_truncate", {"importance_sampling_cap": 1.3}, np.minimum(RATIO, 1.3)),
    ("token_mask", {"importance_sampling_cap": 1.3}, inside(RATIO, 0.0, 1.3)),
    (
        "token_mask",
        {"importance_sampling_cap": 1.5, "importance_sampling_floor": 0.7},
        inside(RATIO, 0.7, 1.5),
    ),
    ("sequence_truncate", {"importance_sampling_cap": 1.2}, np.minimum(PRODUCTS, 1.2)),
    ("sequence_mask", {"importance_sampling_cap": 1.2}, inside(PRODUCTS, 0.0, 1.2)),
]


@pytest.mark.parametrize("budget", [1, 100])
@pytest.mark.parametrize("loss", ["grpo", "gspo", "cispo", "reinforce"])
@pytest.mark.parametrize(("mode", "bounds", "weights"), CASES)
def test_the_gradient_is_weighed_by_old_over_sampler(
    mode: str, bounds: dict[str, float], weights: np.ndarray, loss: str, budget: int
) -> None:
    """With recomputed old logprobs every loss has the gradient ``-w * A / n`` in each token's logprob."""
    table = Table(NEW.tolist())
    chosen = objective(loss=loss, old_logprobs="recomputed", importance_sampling=mode, max_staleness=0, **bounds)
    totals = step(table, TableScorer(), rows(), chosen, "token", budget=budget)
    expected = -weights * of_rollouts(ADVANTAGES) / 10
    expected[0] = 0.0
    np.testing.assert_allclose(gradient_of(table.logprobs), expected, rtol=1e-9, atol=1e-15)
    measured = RATIO[1:] if mode == "none" else weights[1:]
    kish = measured.sum() ** 2 / (10 * (measured**2).sum())
    assert totals.measures["effective_sample_fraction"] == pytest.approx(kish, rel=1e-9)
    assert totals.measures["clip_fraction"] == 0


def test_some_of_each_is_bounded() -> None:
    """The cases above would say little if no bound were to bind."""
    for mode, bounds, weights in CASES[1:]:
        raw = (PRODUCTS if mode.startswith("sequence") else RATIO)[1:]
        assert 0 < np.sum(weights[1:] != raw) < 10, (mode, bounds)


def test_what_is_truncated_and_masked_is_counted() -> None:
    for mode, key, fraction in [
        ("token_truncate", "truncated_fraction", np.mean(RATIO[1:] > 1.3)),
        ("token_mask", "masked_fraction", np.mean(RATIO[1:] > 1.3)),
        ("sequence_mask", "masked_fraction", np.mean(PRODUCTS[1:] > 1.3)),
    ]:
        chosen = objective(old_logprobs="recomputed", importance_sampling=mode, importance_sampling_cap=1.3)
        totals = step(Table(NEW.tolist()), TableScorer(), rows(), chosen, "token", budget=1)
        assert totals.measures[key] == pytest.approx(float(fraction))


def test_gaps_are_told_apart_by_staleness() -> None:
    totals = step(
        Table(NEW.tolist()), TableScorer(), rows(), objective(loss="grpo"), "token", budget=2, policy_version=7
    )
    gaps = np.abs(NEW - OLD)
    stale = of_rollouts([float(value) for value in STALENESS])
    for value in (0, 1, 2):
        chosen = gaps[1:][stale[1:] == value]
        name = f"logprob_gap_staleness_{value}"
        assert totals.measures[f"{name}_mean"] == pytest.approx(float(chosen.mean()))
        assert totals.measures[f"{name}_max"] == pytest.approx(float(chosen.max()))
    assert totals.measures["logprob_gap_mean"] == pytest.approx(float(gaps[1:].mean()))


def test_recomputed_old_logprobs_are_those_that_a_pass_before_the_step_gives() -> None:
    """A sampler that said exactly what the trainer would say before the step: both old policies are one."""
    old = OLD.astype(np.float32).astype(np.float64)
    gradients: list[np.ndarray] = []
    for changes in ({"old_logprobs": "sampler"}, {"old_logprobs": "recomputed", "max_staleness": 0}):
        table = Table(old.tolist())
        fields: dict[str, Any] = changes
        step(table, TableScorer(), rows(old), objective(loss="grpo", **fields), "token", budget=2)
        gradients.append(gradient_of(table.logprobs))
    np.testing.assert_array_equal(gradients[0], gradients[1])


def test_all_masked_is_no_sample_and_no_gradient() -> None:
    table = Table((OLD + 1.0).tolist())
    chosen = objective(old_logprobs="recomputed", importance_sampling="token_mask", importance_sampling_cap=1.5)
    totals = step(table, TableScorer(), rows(), chosen, "token")
    assert not gradient_of(table.logprobs).any()
    assert (totals.measures["masked_fraction"], totals.measures["effective_sample_fraction"]) == (1.0, 0.0)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_an_absurd_gap_stays_finite(mode: str) -> None:
    table = Table((OLD + 40 * MAX_LOG_RATIO).tolist())
    step(table, TableScorer(), rows(), objective(old_logprobs="recomputed", importance_sampling=mode), "token")
    assert np.isfinite(gradient_of(table.logprobs)).all()
