"""Which task comes next."""

from __future__ import annotations

from collections.abc import Set
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from longrein.rollout.schedule import Plans, Uniform, group_number
from longrein.types import Task

TASKS = [Task(task_id=f"t{n}", prompt="") for n in range(5)]


def group_plans(seed: int, shuffle: bool = True, settled: Set[int] = frozenset()) -> Plans:
    return Plans(Uniform(shuffle=shuffle).order(TASKS, seed), seed, settled)


@given(seed=st.integers(0, 100), settled=st.sets(st.integers(0, 12)))
def test_every_epoch_has_every_task_once_and_can_be_entered_anywhere(seed: int, settled: set[int]) -> None:
    whole = list(islice(group_plans(seed), 25))
    for epoch in range(5):
        assert {plan.task.task_id for plan in whole[5 * epoch : 5 * epoch + 5]} == {task.task_id for task in TASKS}
    left = [plan for plan in whole if group_number(plan.group_id) not in settled]
    assert list(islice(group_plans(seed, settled=settled), len(left))) == left
    assert len({plan.group_id for plan in whole}) == 25


def test_epochs_differ_and_the_given_order_is_kept_on_demand() -> None:
    shuffled = [plan.task.task_id for plan in islice(group_plans(1), 20)]
    assert len({tuple(shuffled[i : i + 5]) for i in range(0, 20, 5)}) > 1
    given_order = [plan.task.task_id for plan in islice(group_plans(1, shuffle=False), 7)]
    assert given_order == ["t0", "t1", "t2", "t3", "t4", "t0", "t1"]
