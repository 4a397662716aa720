"""A curriculum by pass rate: the same order whatever finishes first and however often the run is killed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longrein.errors import CheckpointError, ConfigError
from longrein.rollout.beginning import ResumedRun
from longrein.rollout.curriculum import PassRateCurriculum, PassRateOrder
from longrein.rollout.group import RewardSettings, score_group
from longrein.rollout.pass_rate import pass_rate
from longrein.rollout.schedule import GroupOutcome, GroupPlan, Plans, TaskOrder, group_number, outcome_of
from longrein.store import RunStore
from longrein.types import RolloutGroup, Task
from tests.traces import call, rollout

TASKS = [
    Task(task_id=f"{family}-{level}-{n}", prompt="", metadata={"family": family, "difficulty": level})
    for n in range(4)
    for family, level in (("easy", 1), ("right", 1), ("right", 2), ("hard", 3))
]
RATES = {"easy": 1.0, "right": 0.5, "hard": 0.0}
RULE = PassRateCurriculum(lag_groups=4, window=8, explore=0.1)
LATE = [*["start"] * 3, *["start", 3] * 40, 0, 0, 0, *["start", 0] * 8]
"""Three groups are late while forty others could go on."""
SEED = 3


def made(plan: GroupPlan, version: int = 0) -> RolloutGroup:
    """A group that the same plan always ends alike."""
    rng = random.Random(plan.group_id)
    members = []
    for n in range(4):
        reward = float(rng.random() < RATES[plan.task.metadata["family"]])
        calls = [call(0, None, [1], [2], min_policy_version=version, max_policy_version=version)]
        verdict = None if rng.random() < 0.1 else reward
        name = f"{plan.group_id}-{n}"
        members.append(rollout(name, calls, verdict, group_id=plan.group_id, task_id=plan.task.task_id))
    return score_group(plan.group_id, plan.task, members, RewardSettings())


def uninterrupted(count: int) -> list[str]:
    order = RULE.order(TASKS, SEED)
    plans, found = Plans(order, SEED), list[str]()
    for _ in range(count):
        plan = next(plans)
        order.note(group_number(plan.group_id), outcome_of(made(plan)))
        found.append(plan.task.task_id)
    return found


class Run:
    """Groups start while they may, finish in any order, and a kill loses those that run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = 0
        self.planned: dict[int, str] = {}
        self.begin()

    def begin(self) -> None:
        backlog = ResumedRun(policy_version=self.version, taken=frozenset()).prepare(
            self.folder, lambda: RULE.order(TASKS, SEED)
        )
        self.order, self.plans = backlog.order, Plans(backlog.order, SEED, backlog.settled)
        self.running: list[GroupPlan] = []
        self.store = RunStore(self.folder)

    def start(self) -> None:
        if len(self.running) < RULE.lag_groups and self.plans.ready:
            plan = next(self.plans)
            number = group_number(plan.group_id)
            assert self.planned.setdefault(number, plan.task.task_id) == plan.task.task_id, "another task after a kill"
            self.running.append(plan)

    def finish(self, which: int) -> None:
        if self.running:
            group = made(self.running.pop(which % len(self.running)), self.version)
            self.store.append(group)
            self.order.note(group_number(group.group_id), outcome_of(group))


@settings(deadline=None, max_examples=15)
@given(events=st.lists(st.one_of(st.just("start"), st.integers(0, 3), st.just("kill")), max_size=60))
@example(events=LATE)
@example(events=[*["start", 0] * 12, "start", "start", "kill", *["start", 0] * 12])
def test_the_order_is_that_of_a_run_that_was_never_killed(
    tmp_path_factory: pytest.TempPathFactory, events: list[str | int]
) -> None:
    run = Run(tmp_path_factory.mktemp("run"))
    for event in ["start", "start", *events, "kill", "start", "start"]:
        if event == "start":
            run.start()
        elif event == "kill":
            run.begin()
        else:
            run.finish(int(event))
    while run.running:
        run.finish(0)
    assert run.plans.ready, "it waits for what is finished"
    expected = uninterrupted(1 + max(run.planned))
    assert {number: expected[number] for number in run.planned} == run.planned


def test_what_is_lost_is_chosen_again_as_it_was(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(6):
        run.start()
        run.finish(0)
    run.version = 1
    for _ in range(4):
        run.start()
        run.finish(0)
    run.version = 0
    run.begin()
    assert len(list((tmp_path / "rollouts-lost").iterdir())) == 4
    for _ in range(12):
        run.start()
        run.finish(0)
    assert [run.planned[n] for n in range(18)] == uninterrupted(18)


def test_what_is_sometimes_solved_comes_more_often() -> None:
    tasks = {task.task_id: task for task in TASKS}
    families = Counter(tasks[task_id].metadata["family"] for task_id in uninterrupted(400)[100:])
    assert families["right"] > 180 and min(families["easy"], families["hard"]) > 10


def shares_of(target: float) -> dict[str, float]:
    order = PassRateCurriculum(target=target, window=40, explore=0.1).order(TASKS, 0)
    for number in range(40):
        task = TASKS[number % len(TASKS)]
        solved = {"easy": 4, "right": 1 if task.metadata["difficulty"] == 1 else 3, "hard": 0}[task.metadata["family"]]
        order.note(number, GroupOutcome(task_id=task.task_id, solved=solved, judged=4))
    order._count(39)
    return dict(zip(("easy", "a quarter", "three quarters", "hard"), order._shares(), strict=True))


def test_the_target_says_which_rate_comes_most() -> None:
    low, half, high = shares_of(0.25), shares_of(0.5), shares_of(0.75)
    assert max(low, key=low.__getitem__) == "a quarter"
    assert max(high, key=high.__getitem__) == "three quarters"
    assert half["a quarter"] == pytest.approx(half["three quarters"])
    for shares in (low, half, high):
        assert sum(shares.values()) == pytest.approx(1.0) and min(shares.values()) >= 0.1 / 4


def test_it_waits_for_what_it_goes_by() -> None:
    order = RULE.order(TASKS, SEED)
    plans = Plans(order, SEED)
    first = [next(plans) for _ in range(4)]
    assert not plans.ready
    for plan in first[1:]:
        order.note(group_number(plan.group_id), outcome_of(made(plan)))
        assert not plans.ready
    order.note(0, outcome_of(made(first[0])))
    assert plans.ready


def test_a_file_that_was_removed_stops_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(8):
        run.start()
        run.finish(0)
    next((tmp_path / "rollouts").glob("*g000002*")).unlink()
    taken = frozenset({"g000000", "g000001", "g000002"})
    backlog = ResumedRun(policy_version=0, taken=taken).prepare(tmp_path, lambda: RULE.order(TASKS, SEED))
    plans = Plans(backlog.order, SEED, backlog.settled)
    assert plans.ready and next(plans).group_id == "g000008"


def test_every_task_of_a_cell_comes_before_one_comes_again() -> None:
    order = PassRateCurriculum(by=()).order(TASKS, 1)
    assert isinstance(order, PassRateOrder)
    chosen = []
    for number in range(2 * len(TASKS)):
        chosen.append(order.task(number).task_id)
        order.note(number, GroupOutcome(task_id=chosen[-1], solved=1, judged=2))
    assert {*chosen[: len(TASKS)]} == {*chosen[len(TASKS) :]} == {task.task_id for task in TASKS}


def test_a_group_of_another_run_is_refused() -> None:
    with pytest.raises(CheckpointError, match="made of task other, which this run does not have"):
        RULE.order(TASKS, SEED).note(0, GroupOutcome(task_id="other", solved=0, judged=0))


def test_pass_rates_are_told_by_kind() -> None:
    plan = GroupPlan(group_id="g000001", task=TASKS[0], seed=0)
    group = made(plan)
    assert pass_rate(group) == {"pass_rate/easy/1": 1.0}
    assert pass_rate(score_group("g", Task(task_id="t", prompt=""), group.rollouts, RewardSettings())) == {}


OTHERS: dict[str, Callable[[], TaskOrder]] = {
    "seed": lambda: RULE.order(TASKS, SEED + 1),
    "tasks": lambda: RULE.order(TASKS[::-1], SEED),
    "cells": lambda: msgspec.structs.replace(RULE, by=("family",)).order(TASKS, SEED),
    "exploration": lambda: msgspec.structs.replace(RULE, explore=1.0).order(TASKS, SEED),
}


@pytest.mark.parametrize("other", OTHERS)
def test_rollouts_of_another_seed_or_rule_are_refused(tmp_path: Path, other: str) -> None:
    run = Run(tmp_path)
    for _ in range(24):
        run.start()
        run.finish(0)
    resumed = ResumedRun(policy_version=0, taken=frozenset())
    assert len(resumed.prepare(tmp_path, lambda: RULE.order(TASKS, SEED)).waiting) == 24
    with pytest.raises(CheckpointError, match=r"was made of task .*, but in this run it is of .*the curriculum"):
        resumed.prepare(tmp_path, OTHERS[other])


def test_what_went_by_outcomes_that_are_gone_is_believed(tmp_path: Path) -> None:
    """Groups were lost, made again with other outcomes, and one that had gone by the first outcomes had stayed."""
    run = Run(tmp_path)
    for _ in range(6):
        run.start()
        run.finish(0)
    (tmp_path / "rollouts-lost").mkdir()
    for path in (tmp_path / "rollouts").glob("*-g00000[01].parquet"):
        path.rename(tmp_path / "rollouts-lost" / path.name)
    order = RULE.order(TASKS, SEED)
    store = RunStore(tmp_path)
    for number in (0, 1):
        group = made(GroupPlan(group_id=f"g{number:06d}", task=order.task(number), seed=0))
        turned = tuple(
            msgspec.structs.replace(r, score=msgspec.structs.replace(r.score, reward=1.0)) for r in group.rollouts
        )
        store.append(msgspec.structs.replace(group, rollouts=turned))
    for file in store.files():
        order.note(group_number(file.group_id), outcome_of(file.read()))
    other = next(task for task in TASKS if task != order.task(6))
    store.append(made(GroupPlan(group_id="g000006", task=other, seed=0)))
    resumed = ResumedRun(policy_version=0, taken=frozenset())
    assert len(resumed.prepare(tmp_path, lambda: RULE.order(TASKS, SEED)).waiting) == 7


def test_groups_that_are_gone_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken = frozenset({"g000000", "g000001"})
    ResumedRun(policy_version=0, taken=taken).prepare(tmp_path, lambda: RULE.order(TASKS, SEED))
    assert "2 groups that steps have used up are not there, g000000 for one" in caplog.text


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"lag_groups": 0}, "lag_groups=0 .*cannot wait for itself"),
        ({"target": 1.0}, "target=1.0"),
        ({"target": float("nan")}, "target=nan"),
        ({"window": 0, "explore": 0.0}, "window=0 .*explore=0.0"),
        ({"by": "family"}, "by='family' must be a tuple"),
    ],
)
def test_rules_that_would_hang_or_learn_nothing_are_refused(said: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        PassRateCurriculum(**said)


def test_tasks_of_one_id_cannot_be_ordered_by_what_came_of_them() -> None:
    twice = [*TASKS, msgspec.structs.replace(TASKS[0], metadata={"family": "other"})]
    with pytest.raises(ConfigError, match="1 ids are of several tasks, 'easy-1-0' for one"):
        RULE.order(twice, SEED)


@pytest.mark.parametrize("group_id", ["g-5", "g 5", "g1_0", "5", "g\u0663", "g" + "1" * 5000, "base-00000"])
def test_ids_that_no_plan_gives_are_refused(group_id: str) -> None:
    with pytest.raises(CheckpointError, match="was not made by a HarnessRolloutWorker"):
        group_number(group_id)


def test_keys_that_no_task_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="no task has topic or level in its metadata"):
        PassRateCurriculum(by=("topic", "level")).order(TASKS, SEED)
