"""What has nothing to teach, or cannot be trusted, is counted and in no denominator, and never makes a NaN.

Each kind joins a step of one good group in turn; the shares of the good rows stay what they were, for every
aggregation. Beside this: rewards that are not finite are unscorable (``tests/rollout/test_group.py``), the baseline of
a group (``tests/rollout/test_advantage.py``), empty and refused steps (``test_trainer.py``, ``test_choices.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
import torch

from longrein.train.batch import share_step
from longrein.train.collect import CollectRule, StepCollector
from longrein.train.loss_choices import Aggregation
from longrein.train.methods import METHODS
from longrein.train.normalise import AsGiven, BatchNormalised, StepScale
from longrein.train.step_trainer import StepRows
from longrein.types import ROLE_WEIGHTS, Call, RolloutGroup
from tests.traces import failed
from tests.train.test_trainer import config, step_lines, trainer
from tests.train.test_trainer import talk as talk_of_version
from tests.train.toy import Recorder, Script, group

VERSION = 5
talk = talk_of_version(VERSION)


def third_member(calls: Callable[[], list[Call]], reward: float | None = 0.5, advantage: float = 0.3) -> RolloutGroup:
    """The good group with one more; the advantages of the two good ones are as without it."""

    def of(index: int) -> list[Call]:
        return calls() if index == 2 else talk(index)

    made = group("g", [0.0, 1.0, reward], of, advantages=(-1.0, 1.0, advantage))
    return made if reward is not None else msgspec.structs.replace(made, rollouts=(*made.rollouts[:2], failed("g-2")))


def with_logprob(value: float) -> list[Call]:
    (made,) = talk(2)
    logprobs = made.completion.logprobs.copy()
    logprobs[1] = value
    return [msgspec.structs.replace(made, completion=msgspec.structs.replace(made.completion, logprobs=logprobs))]


def undelivered() -> list[Call]:
    return [msgspec.structs.replace(item, delivered=False) for item in talk(2)]


GOOD = group("g", [0.0, 1.0], talk, advantages=(-1.0, 1.0))
EQUAL = group("e", [1.0, 1.0, 1.0], talk)
ALONE = group("e", [1.0, None, None], talk)
KINDS: dict[str, tuple[list[RolloutGroup], str, float]] = {
    "empty trace": ([third_member(list)], "rows", 2),
    "no trained token": ([third_member(undelivered)], "count/untrained_tokens_undelivered", 4),
    "unscorable": ([third_member(lambda: talk(2), reward=None, advantage=0.0)], "count/unscored_rollouts", 1),
    "reward not finite": ([third_member(lambda: talk(2), advantage=math.nan)], "count/non_finite_rows", 1),
    "logprob is nan": ([third_member(lambda: with_logprob(math.nan))], "count/non_finite_rows", 1),
    "logprob is -inf": ([third_member(lambda: with_logprob(-math.inf))], "count/non_finite_rows", 1),
    "too stale": ([third_member(lambda: talk_of_version(VERSION - 2)(2))], "count/stale_rows", 1),
    "zero variance": ([GOOD, EQUAL], "count/equal_reward_groups", 1),
    "nobody to compare with": ([GOOD, ALONE], "count/equal_reward_groups", 1),
}
"""Name -> groups of the step, what counts it, and how many are counted."""


AS_GIVEN = AsGiven()


def collected(groups: list[RolloutGroup], equal_groups: Any = "drop", scale: StepScale = AS_GIVEN) -> StepRows:
    rule = CollectRule(
        groups_per_step=len(groups),
        max_staleness=1,
        fork_threshold_tokens=0,
        role_weights=ROLE_WEIGHTS,
        scale=scale,
        equal_groups=equal_groups,
    )
    return next(iter(StepCollector(Script(groups), rule, lambda: VERSION)))


def shares(step: StepRows, aggregation: Aggregation) -> dict[str, float]:
    """Of the rows that teach, by their rollouts."""
    found = share_step(step.rows, aggregation, constant_tokens=7)
    return {item.row.rollout_id: item.share for item in found if item.row.group_id == "g"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_it_is_counted_and_in_no_denominator(kind: str, aggregation: Aggregation) -> None:
    groups, counter, count = KINDS[kind]
    step = collected(groups)
    assert shares(step, aggregation) == shares(collected([GOOD]), aggregation)
    assert step.metrics[counter] == count
    assert all(math.isfinite(value) for value in step.metrics.values())


def test_what_was_delivered_is_a_mean_over_rollouts_however_few_of_a_group_sampled() -> None:
    """One rollout of the first group sampled, and in vain; three of the second, all delivered."""

    def one(index: int) -> list[Call]:
        return undelivered() if index == 0 else []

    groups = [group("a", [0.0, 1.0, 0.5], one), group("b", [0.0, 1.0, 0.5], talk)]
    assert collected(groups).metrics["delivered_token_fraction"] == 3 / 4


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_groups_of_equal_rewards_are_in_every_denominator_where_a_paper_wants_it(aggregation: Aggregation) -> None:
    alone, counted = (shares(collected(groups, "count"), aggregation) for groups in ([GOOD], [GOOD, EQUAL]))
    assert all(counted[name] < alone[name] for name in alone)


def test_nor_are_they_in_the_deviation_over_the_step() -> None:
    scale = BatchNormalised()
    alone, joined = (collected(groups, scale=scale).rows for groups in ([GOOD], [GOOD, EQUAL]))
    assert [item.advantage for item in joined] == [item.advantage for item in alone]
    counted = collected([GOOD, EQUAL], "count", scale).rows
    assert abs(counted[0].advantage) > abs(alone[0].advantage)


def test_each_published_method_says_what_such_groups_are() -> None:
    assert {name: method["equal_groups"] for name, method in METHODS.items() if method["equal_groups"] != "count"} == {
        "dapo": "replace"
    }


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_all_of_them_at_once_train_the_same_weights(folder: Path, tmp_path: Path, aggregation: Aggregation) -> None:
    def calls(index: int) -> list[Call]:
        members = {2: list, 3: undelivered, 4: partial(with_logprob, math.nan)}
        made = members[index]() if index in members else talk(index)
        fresh = [msgspec.structs.replace(item.completion, min_policy_version=0, max_policy_version=0) for item in made]
        return [msgspec.structs.replace(item, completion=done) for item, done in zip(made, fresh, strict=True)]

    crowd = group("g", [0.0, 1.0, 0.5, 0.2, 0.7, None], calls, advantages=(-1.0, 1.0, 0.1, -0.2, 0.4, 0.0))
    crowd = msgspec.structs.replace(crowd, rollouts=(*crowd.rollouts[:5], failed("g-5")))
    equal = group("e", [1.0] * 6, lambda index: calls(index % 2))
    weights: list[dict[str, torch.Tensor]] = []
    for groups in ([group("g", [0.0, 1.0], calls, advantages=(-1.0, 1.0))], [crowd, equal]):
        receiver = Recorder()
        size = len(groups[0].rollouts)
        args = config(
            tmp_path,
            max_steps=1,
            num_generations=size,
            per_device_train_batch_size=size * len(groups),
            loss_aggregation=aggregation,
        )
        made = trainer(folder, args, Script(groups), receiver)
        made.train()
        (line,) = step_lines(made)
        assert (line["rows"], line["count/empty_steps"]) == (2, 0)
        assert all(np.isfinite(value) for value in line.values())
        weights.append(receiver.sent[0])
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name
