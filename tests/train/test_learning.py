"""Every loss learns: a bandit of two choices whose best policy is known, sampled by weights one step old."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from longrein.rollout.advantage import advantages
from longrein.train.methods import METHODS
from longrein.train.normalise import AsGiven, BatchNormalised
from longrein.types import Row
from tests.train.table import Bandit, BanditScorer, objective, step
from tests.train.toy import row

VOCABULARY, FIRST, SECOND = 5, 3, 1
GROUPS, MEMBERS, STEPS = 3, 6, 60
RECOMPUTED: dict[str, Any] = {"old_logprobs": "recomputed", "epsilon": 0.2, "epsilon_high": 0.2}
RUNS: dict[str, dict[str, Any]] = {
    **{name: dict(settings) for name, settings in METHODS.items() if name != "rloo"},
    "rloo, truncated": {**METHODS["rloo"], **RECOMPUTED, "importance_sampling": "token_truncate"},
    "grpo, delta": {**METHODS["grpo"], "delta": 3.0},
    **{
        f"grpo, {mode}": {**METHODS["grpo"], **RECOMPUTED, "importance_sampling": mode}
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    },
}


def expected_reward(bandit: Bandit) -> float:
    """Exact: half for each right choice; the second choice depends on the first."""
    policy = torch.softmax(bandit.logits.detach(), -1)
    return float(0.5 * policy[0, FIRST] + 0.5 * (policy[0] @ policy[:, SECOND]))


def sampled_group(bandit: Bandit, random: np.random.Generator, group_id: str, version: int) -> list[Row]:
    logprobs = torch.log_softmax(bandit.logits.detach(), -1).numpy()
    rows: list[Row] = []
    for member in range(MEMBERS):
        ids = [0]
        for _ in range(2):
            ids.append(int(random.choice(VOCABULARY, p=np.exp(logprobs[ids[-1]]))))
        said = np.array([0.0, logprobs[0, ids[1]], logprobs[ids[1], ids[2]]], np.float32)
        fields: dict[str, Any] = {"rollout_id": f"{group_id}-{member}", "group_id": group_id}
        rows.append(row(ids, [1, 2], logprobs=said, min_policy_version=version, **fields))
    return rows


def with_advantages(groups: list[list[Row]], name: Any) -> list[Row]:
    values: list[float] = []
    for group in groups:
        rewards = [0.5 * (item.token_ids[1] == FIRST) + 0.5 * (item.token_ids[2] == SECOND) for item in group]
        values += advantages([float(reward) for reward in rewards], 1e-4, name)
    factor = (BatchNormalised() if name == "batch_normalised" else AsGiven()).factor(values)
    every = [item for group in groups for item in group]
    return [
        row(
            item.token_ids.tolist(),
            [1, 2],
            logprobs=item.logprobs,
            advantage=value * factor,
            rollout_id=item.rollout_id,
            group_id=item.group_id,
            min_policy_version=item.min_policy_version,
        )
        for item, value in zip(every, values, strict=True)
    ]


@pytest.mark.parametrize("name", RUNS)
def test_it_finds_the_best_policy(name: str) -> None:
    settings = RUNS[name]
    chosen = objective(**settings, max_staleness=1)
    bandit = Bandit(VOCABULARY, VOCABULARY)
    optimizer = torch.optim.Adam(bandit.parameters(), lr=0.15)
    random = np.random.default_rng(0)
    assert expected_reward(bandit) == pytest.approx(0.2)
    waiting: list[list[Row]] = []
    for number in range(STEPS):
        # Every other step trains on what the weights before the last step sampled.
        if not waiting:
            waiting = [sampled_group(bandit, random, f"{number}-{k}", number) for k in range(2 * GROUPS)]
        groups, waiting = waiting[:GROUPS], waiting[GROUPS:]
        rows = with_advantages(groups, settings["advantage"])
        if any(chosen.teaches(item) for item in rows):
            optimizer.zero_grad()
            step(bandit, BanditScorer(), rows, chosen, settings["loss_aggregation"], constant_tokens=2, budget=9)
            optimizer.step()
    assert expected_reward(bandit) > 0.9
