"""TRL's queue over groups: what it gets, what it waits for, and what it is never given."""

from __future__ import annotations

import queue
import time
from typing import Any, Literal

import pytest

from longrein.errors import BatchError
from longrein.integrations.trl.buffer import REPLACED_IN_A_ROW, UNTRAINABLE_IN_A_ROW, SampleBuffer
from longrein.integrations.trl.metrics import SampleMetrics
from longrein.integrations.trl.samples import SampleRule
from longrein.rollout.group import RewardSettings, score_group
from longrein.types import RolloutGroup
from tests.traces import TASK, call, failed, rollout


def group(number: int, *rewards: float | None) -> RolloutGroup:
    name = f"g{number:06d}"
    members = [rollout(f"{name}-{n}", [call(0, None, [1], [n])], r, group_id=name) for n, r in enumerate(rewards)]
    return score_group(name, TASK, members, RewardSettings())


class Rig:
    def __init__(self, *groups: RolloutGroup, equal_groups: Literal["count", "replace"] = "count") -> None:
        self.groups: queue.Queue[RolloutGroup] = queue.Queue()
        self.measured: queue.Queue[dict[str, float]] = queue.Queue()
        self.metrics = SampleMetrics(self.measured)
        self.delivered: list[str] = []
        self.buffer = SampleBuffer(self.groups, SampleRule(), equal_groups, self.metrics, self._watch)
        for one in groups:
            self.groups.put(one)

    def _watch(self, group: RolloutGroup, samples: tuple[Any, ...]) -> None:
        self.delivered.append(group.group_id)

    def group_ids(self) -> list[int]:
        found: list[int] = []
        while True:
            try:
                found.append(self.buffer.get(timeout=0.0).group_id)
            except queue.Empty:
                return found


def test_samples_come_group_by_group_and_no_group_is_taken_ahead() -> None:
    rig = Rig(group(1, 0.0, 1.0), group(2, 0.0, 1.0))
    assert rig.buffer.get(timeout=1.0).group_id == 1
    assert (rig.buffer.qsize(), rig.groups.qsize()) == (1, 1)
    assert rig.group_ids() == [1, 2, 2]
    assert rig.buffer.taken == rig.delivered == ["g000001", "g000002"]


def test_groups_with_nothing_to_train_are_not_delivered_but_counted() -> None:
    failures = score_group("g000003", TASK, [failed("a"), failed("b")], RewardSettings())
    rig = Rig(failures, group(4, None, None), group(5, None, 0.0, 1.0))
    assert rig.group_ids() == [5, 5]
    assert rig.buffer.taken == ["g000003", "g000004", "g000005"]
    counts: dict[str, float] = {}
    while True:
        try:
            for name, number in rig.metrics.get_nowait().items():
                counts[name] = counts.get(name, 0.0) + number
        except queue.Empty:
            break
    assert counts["rollout/untrainable_groups_total"] == 2
    assert counts["rollout/unscored_rollouts_total"] == 5
    assert counts["rollout/failed_sandbox_total"] == 2


def test_waiting_ends_in_time_although_groups_come_that_are_not_delivered() -> None:
    rig = Rig(group(1, None, None))
    started_s = time.monotonic()
    with pytest.raises(queue.Empty):
        rig.buffer.get(timeout=0.2)
    assert 0.15 < time.monotonic() - started_s < 20.0


def test_one_group_after_another_without_a_token_to_train_is_an_error_with_its_reason() -> None:
    rig = Rig(*(group(n, None, None) for n in range(UNTRAINABLE_IN_A_ROW)))
    with pytest.raises(BatchError, match="g000007 of task t: unscored_rollouts 2"):
        rig.buffer.get(timeout=1.0)


def test_groups_of_equal_rewards_count_or_are_replaced_but_not_for_ever() -> None:
    equal = [group(n, 1.0, 1.0) for n in range(REPLACED_IN_A_ROW + 2)]
    assert len(Rig(*equal).group_ids()) == 2 * len(equal)
    rig = Rig(*equal, group(99, 0.0, 1.0), equal_groups="replace")
    assert rig.group_ids() == [REPLACED_IN_A_ROW, REPLACED_IN_A_ROW, 99, 99]


def test_numbers_have_names_that_trl_sums_or_averages_by() -> None:
    rig = Rig()
    rig.measured.put({"count/restored_groups": 3.0, "inflight": 2.0})
    assert rig.metrics.get_nowait() == {"rollout/restored_groups_total": 3.0, "rollout/inflight": 2.0}
    with pytest.raises(queue.Empty):
        rig.metrics.get_nowait()
