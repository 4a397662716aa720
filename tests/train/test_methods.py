"""Published methods, whole: rewards to gradient by our step against a plain numpy transcription of each paper.

The policy is a table of logprobs, one for each sampled token, so the gradient to compare has one number a token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from longrein.rollout.advantage import advantages
from longrein.train.methods import METHODS
from longrein.train.normalise import AsGiven, BatchNormalised
from longrein.types import Row
from tests.train.table import Table, TableScorer, gradient_of, objective, sampled_row, step

LENGTH = 7
"""Dr. GRPO's constant."""
F64 = NDArray[np.float64]


class Rollout(msgspec.Struct):
    reward: float
    ids: list[int]
    """Its sampled tokens: places in the table."""


class Sample(msgspec.Struct):
    groups: list[list[Rollout]]
    new: F64
    """``[n]``: the policy in training."""
    old: F64
    """``[n]``: the sampler."""

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.groups for rollout in group]


def sample(seed: int, spread: float) -> Sample:
    """Groups of 3 with rollouts of 1 to 6 tokens; ratios around 1, far enough that some are clipped on either side."""
    random = np.random.default_rng(seed)
    groups: list[list[Rollout]] = []
    used = 1
    for _ in range(2 + seed % 2):
        members: list[Rollout] = []
        for _ in range(3):
            size = int(random.integers(1, 7))
            members.append(Rollout(reward=float(random.normal()), ids=list(range(used, used + size))))
            used += size
        groups.append(members)
    old = random.normal(-2, 1, used).astype(np.float32).astype(np.float64)
    return Sample(groups=groups, new=old + random.normal(0, spread, used), old=old)


def objective_value(method: str, sample: Sample, theta: F64, fixed: F64) -> float:
    return PAPERS[method](sample, theta, fixed)


def normalised(group: list[Rollout]) -> list[float]:
    rewards = np.array([rollout.reward for rollout in group])
    return list((rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4))


def surrogate(ratio: F64, advantage: float, low: float, high: float) -> F64:
    return np.minimum(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)


def grpo(sample: Sample, theta: F64, fixed: F64) -> float:
    """arXiv 2402.03300, eq. 3: 1/G sum_i 1/|o_i| sum_t min(...), expected over questions."""
    per_group = []
    for group in sample.groups:
        inner = 0.0
        for rollout, advantage in zip(group, normalised(group), strict=True):
            ratio = np.exp(theta[rollout.ids] - sample.old[rollout.ids])
            inner += surrogate(ratio, advantage, 0.2, 0.2).sum() / len(rollout.ids)
        per_group.append(inner / len(group))
    return float(np.mean(per_group))


def dr_grpo(sample: Sample, theta: F64, fixed: F64) -> float:
    """arXiv 2503.20783, figure 1 right: no 1/|o_i|, no std; a constant in place of the length."""
    per_group = []
    for group in sample.groups:
        mean = np.mean([rollout.reward for rollout in group])
        inner = 0.0
        for rollout in group:
            ratio = np.exp(theta[rollout.ids] - sample.old[rollout.ids])
            inner += surrogate(ratio, float(rollout.reward - mean), 0.2, 0.2).sum() / LENGTH
        per_group.append(inner / len(group))
    return float(np.mean(per_group))


def dapo(sample: Sample, theta: F64, fixed: F64) -> float:
    """arXiv 2503.14476, eq. 8: 1/sum_i |o_i| sum_i sum_t min(...), bounds 0.2 and 0.28."""
    per_group = []
    for group in sample.groups:
        inner = 0.0
        for rollout, advantage in zip(group, normalised(group), strict=True):
            ratio = np.exp(theta[rollout.ids] - sample.old[rollout.ids])
            inner += surrogate(ratio, advantage, 0.2, 0.28).sum()
        per_group.append(inner / sum(len(rollout.ids) for rollout in group))
    return float(np.mean(per_group))


def gspo(sample: Sample, theta: F64, fixed: F64) -> float:
    """arXiv 2507.18071, eq. 5 to 7: 1/G sum_i min(s_i A_i, clip(s_i) A_i), s_i the length-normalised ratio."""
    per_group = []
    for group in sample.groups:
        inner = 0.0
        for rollout, advantage in zip(group, normalised(group), strict=True):
            likelihood = np.exp(np.sum(theta[rollout.ids] - sample.old[rollout.ids]) / len(rollout.ids))
            inner += float(surrogate(np.array(likelihood), advantage, 3e-4, 4e-4))
        per_group.append(inner / len(group))
    return float(np.mean(per_group))


def cispo(sample: Sample, theta: F64, fixed: F64) -> float:
    """arXiv 2506.13585, eq. 4 and 5: 1/sum_i |o_i| sum_i sum_t sg(clip(r)) A log pi; no lower bound."""
    per_group = []
    for group in sample.groups:
        inner = 0.0
        for rollout, advantage in zip(group, normalised(group), strict=True):
            weight = np.minimum(np.exp(fixed[rollout.ids] - sample.old[rollout.ids]), 5.0)
            inner += (weight * advantage * theta[rollout.ids]).sum()
        per_group.append(inner / sum(len(rollout.ids) for rollout in group))
    return float(np.mean(per_group))


def rloo(sample: Sample, theta: F64, fixed: F64) -> float:
    """arXiv 2402.14740: 1/k sum_i (R_i - mean of the others) log pi(y_i), the sum over its tokens."""
    per_group = []
    for group in sample.groups:
        inner = 0.0
        for index, rollout in enumerate(group):
            others = [other.reward for place, other in enumerate(group) if place != index]
            inner += (rollout.reward - np.mean(others)) * theta[rollout.ids].sum()
        per_group.append(inner / len(group))
    return float(np.mean(per_group))


def reinforce_plus_plus(sample: Sample, theta: F64, fixed: F64) -> float:
    """arXiv 2501.03262, with baseline: centred in the group, normalised over the batch; PPO's clip, mean of tokens."""
    centred = [
        rollout.reward - np.mean([other.reward for other in group]) for group in sample.groups for rollout in group
    ]
    scaled = (np.array(centred) - np.mean(centred)) / (np.std(centred) + 1e-4)
    total, tokens = 0.0, 0
    for rollout, advantage in zip(sample.rollouts, scaled, strict=True):
        ratio = np.exp(theta[rollout.ids] - sample.old[rollout.ids])
        total += surrogate(ratio, float(advantage), 0.2, 0.2).sum()
        tokens += len(rollout.ids)
    return float(total / tokens)


PAPERS: dict[str, Callable[[Sample, F64, F64], float]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
}


def rows_of(sample: Sample, settings: Any) -> list[Row]:
    """As worker and collector would make them; every other rollout forked into two rows."""
    by_group = [
        advantages([rollout.reward for rollout in group], 1e-4, settings["advantage"]) for group in sample.groups
    ]
    scale = BatchNormalised() if settings["advantage"] == "batch_normalised" else AsGiven()
    factor = scale.factor([value for values in by_group for value in values])
    rows: list[Row] = []
    for number, (group, values) in enumerate(zip(sample.groups, by_group, strict=True)):
        for index, (rollout, value) in enumerate(zip(group, values, strict=True)):
            middle = len(rollout.ids) // 2 if index % 2 == 0 else 0
            for ids in (rollout.ids[:middle], rollout.ids[middle:]):
                if ids:
                    fields: dict[str, Any] = {"rollout_id": f"{number}-{index}", "group_id": str(number)}
                    rows.append(sampled_row(ids[0], sample.old[ids].tolist(), advantage=value * factor, **fields))
    return rows


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_its_paper(method: str, seed: int) -> None:
    settings = METHODS[method]
    drawn = sample(seed, spread=0.003 if method == "gspo" else 1.0 if method == "cispo" else 0.3)
    table = Table(drawn.new.tolist())
    chosen = objective(**settings, max_staleness=0)
    totals = step(
        table,
        TableScorer(),
        rows_of(drawn, settings),
        chosen,
        settings["loss_aggregation"],
        constant_tokens=LENGTH,
        budget=4,
    )
    value = objective_value(method, drawn, drawn.new, drawn.new)
    np.testing.assert_allclose(float(totals.loss), -value, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradient_of(table.logprobs), -slopes(method, drawn), rtol=1e-4, atol=1e-8)
    if method not in ("rloo", "cispo"):
        assert totals.measures["clip_low_fraction"] > 0 or totals.measures["clip_high_fraction"] > 0


def slopes(method: str, drawn: Sample) -> F64:
    """Central differences of the paper's objective; what has a stop-gradient stays."""
    h = 1e-6
    found = np.zeros_like(drawn.new)
    for place in range(drawn.new.size):
        up, down = drawn.new.copy(), drawn.new.copy()
        up[place] += h
        down[place] -= h
        rise = objective_value(method, drawn, up, drawn.new) - objective_value(method, drawn, down, drawn.new)
        found[place] = rise / (2 * h)
    return found
