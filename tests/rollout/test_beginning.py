"""Nothing finished is lost, and nothing is used twice, however often a run is killed and gone on with."""

from __future__ import annotations

from collections.abc import Set
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longrein.errors import CheckpointError, TraceError
from longrein.rollout.beginning import NewRun, ResumedRun
from longrein.rollout.group import RewardSettings, score_group
from longrein.rollout.schedule import GroupPlan, Plans, TaskOrder, Uniform, group_number
from longrein.store import RunStore, read_groups
from longrein.types import RolloutGroup, Task
from tests.traces import call, rollout

TASKS = [Task(task_id=f"t{n}", prompt="") for n in range(3)]
SEED = 5


def fresh_order() -> TaskOrder:
    return Uniform().order(TASKS, SEED)


def plans_from(settled: Set[int] = frozenset()) -> Plans:
    return Plans(fresh_order(), SEED, settled)


def made(plan: GroupPlan, version: int, weights: int = 0, scored: bool = True) -> RolloutGroup:
    reply = {"role": "assistant", "content": str(weights)}
    member = rollout(
        f"{plan.group_id}-0",
        [call(0, None, [1], [2], min_policy_version=version, max_policy_version=version, reply=reply)],
        group_id=plan.group_id,
        task_id=plan.task.task_id,
    )
    group = score_group(plan.group_id, plan.task, [member], RewardSettings())
    return group if scored else msgspec.structs.replace(group, rewards=(), advantages=())


class Life:
    """A run as worker and trainer live it, without models. Every weight change gets a number that never comes again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fresh_weights = count()
        self.saved: tuple[tuple[int, ...], tuple[str, ...]] = ((next(self.fresh_weights),), ())
        self.scored: dict[str, RolloutGroup] = {}
        self.begin()

    @property
    def version(self) -> int:
        return len(self.weights) - 1

    def begin(self) -> None:
        self.weights, self.taken = [*self.saved[0]], [*self.saved[1]]
        expected = [
            name
            for name, group in self.scored.items()
            if name not in self.taken and group.rollouts[0].trace.calls[0].completion.max_policy_version <= self.version
        ]
        beginning = ResumedRun(policy_version=self.version, taken=frozenset(self.taken))
        backlog = beginning.prepare(self.folder, fresh_order)
        assert [group.group_id for group in backlog.waiting] == expected, "a finished group was lost"
        assert not beginning.prepare(self.folder, fresh_order).lost_groups, "killed while it began, it begins alike"
        self.queue = [*backlog.waiting]
        self.scored = {name: group for name, group in self.scored.items() if name in {*expected, *self.taken}}
        self.store = RunStore(self.folder)
        self.plans = plans_from(backlog.settled)

    def make(self, scored: bool) -> None:
        plan = next(self.plans)
        assert plan.group_id not in self.scored, "a group was made again"
        group = made(plan, self.version, self.weights[-1], scored)
        self.store.append(group)
        if scored:
            self.scored[plan.group_id] = group
            self.queue.append(group)

    def step(self) -> None:
        if not self.queue:
            return
        group = self.queue.pop(0)
        sampled = group.rollouts[0].trace.calls[0]
        assert group.group_id not in self.taken, "a group was used twice"
        assert sampled.reply["content"] == str(self.weights[sampled.completion.max_policy_version]), (
            "it was sampled by weights that are no part of this history"
        )
        self.taken.append(group.group_id)
        self.weights.append(next(self.fresh_weights))

    def save(self) -> None:
        self.saved = (tuple(self.weights), tuple(self.taken))


@settings(deadline=None, max_examples=40)
@given(
    events=st.lists(st.sampled_from(["make", "make", "unscored", "step", "step", "save", "kill"]), max_size=40),
)
@example(events=["make", "make", "make", "step", "save", "step", "make", "unscored", "kill", "step", "make"])
def test_each_finished_group_is_used_once_in_the_history_of_the_weights(
    tmp_path_factory: pytest.TempPathFactory, events: list[str]
) -> None:
    life = Life(tmp_path_factory.mktemp("life"))
    for event in [*events, "kill"]:
        if event in ("make", "unscored"):
            life.make(scored=event == "make")
        else:
            {"step": life.step, "save": life.save, "kill": life.begin}[event]()
    on_disk = [group.group_id for group in read_groups(life.folder)]
    assert len(on_disk) == len(set(on_disk))
    assert {*life.taken, *(group.group_id for group in life.queue)} == set(on_disk)


def test_what_is_lost_is_kept_beside(tmp_path: Path) -> None:
    plans = plans_from()
    store = RunStore(tmp_path)
    groups = [made(next(plans), 0), made(next(plans), 2), made(next(plans), 1, scored=False), made(next(plans), 1)]
    for group in groups:
        store.append(group)
    backlog = ResumedRun(policy_version=1, taken=frozenset({"g000000"})).prepare(tmp_path, fresh_order)
    assert [group.group_id for group in backlog.waiting] == ["g000003"]
    assert (backlog.settled, backlog.lost_groups) == ({0, 3}, 2)
    assert [path.name for path in sorted((tmp_path / "rollouts-lost").iterdir())] == [
        "000001-g000001.parquet",
        "000002-g000002.parquet",
    ]
    assert RunStore(tmp_path).append(groups[1]).name == "000004-g000001.parquet", "no number is given twice"


def test_a_new_run_moves_the_rollouts_of_an_earlier_one_aside(tmp_path: Path) -> None:
    plan = next(plans_from())
    for number in (1, 2):
        RunStore(tmp_path).append(made(plan, 0))
        assert not NewRun().prepare(tmp_path, fresh_order).waiting
        assert len(list((tmp_path / f"rollouts.{number}").glob("*.parquet"))) == 1
    assert not list(read_groups(tmp_path))


def test_another_runs_rollouts_are_refused(tmp_path: Path) -> None:
    plans = plans_from()
    path = RunStore(tmp_path).append(made(next(plans), 0))
    resumed = ResumedRun(policy_version=0, taken=frozenset())
    with pytest.raises(CheckpointError, match=r"group g000000 was made of task t\d, but in this run it is of other"):
        resumed.prepare(tmp_path, lambda: Uniform().order([Task(task_id="other", prompt="")], SEED))
    path.write_bytes(b"PAR1")
    with pytest.raises(TraceError, match="not a readable rollout file"):
        resumed.prepare(tmp_path, fresh_order)
    with pytest.raises(CheckpointError, match="'x' was not made by a HarnessRolloutWorker"):
        group_number("x")
