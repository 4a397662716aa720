"""Admission bounds staleness before a token is sampled."""

from __future__ import annotations

import multiprocessing
import queue
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrein.rollout.buffer import AdmissionRule, RolloutBuffer
from longrein.rollout.group import RewardSettings, score_group
from tests.traces import TASK, call, rollout


@given(
    groups_per_step=st.integers(1, 4),
    max_staleness=st.integers(0, 3),
    finish_order=st.lists(st.integers(0, 3), min_size=40, max_size=40),
)
def test_first_in_first_out_groups_never_exceed_the_bound(
    groups_per_step: int, max_staleness: int, finish_order: list[int]
) -> None:
    """Simulates worker and trainer; groups finish in order, so admission alone must keep the bound."""
    rule = AdmissionRule(groups_per_step=groups_per_step, max_staleness=max_staleness)
    version = taken = taken_at_version = 0
    started: list[int] = []
    for burst in finish_order:
        for _ in range(burst + 1):
            waits = taken == len(started)
            if rule.admits(
                under_way=len(started) - taken, taken_this_version=taken - taken_at_version, trainer_waits=waits
            ):
                started.append(version)
        if taken < len(started):
            assert version - started[taken] <= max_staleness
            taken += 1
            if taken - taken_at_version == groups_per_step:
                version, taken_at_version = version + 1, taken
    assert version > 0


@given(groups_per_step=st.integers(1, 4), max_staleness=st.integers(0, 3), dropped=st.integers(0, 20))
def test_a_waiting_trainer_is_never_starved(groups_per_step: int, max_staleness: int, dropped: int) -> None:
    rule = AdmissionRule(groups_per_step=groups_per_step, max_staleness=max_staleness)
    assert rule.admits(under_way=0, taken_this_version=dropped, trainer_waits=True)


def test_groups_travel_whole_and_an_empty_queue_says_so() -> None:
    buffer = RolloutBuffer(multiprocessing.get_context("spawn"))
    group = score_group("g", TASK, [rollout("a", [call(0, None, [1], [2])])], RewardSettings())
    with pytest.raises(queue.Empty):
        buffer.get(timeout=0.01)
    assert buffer.ledger.taken == 0
    buffer.put(group)
    got = buffer.get(timeout=5)
    assert got.rollouts[0].trace.calls[0].completion.token_ids.tolist() == [2]
    assert buffer.ledger.taken == 1
    assert not buffer.ledger.waiting
    started_s = time.monotonic()
    buffer.close()
    assert time.monotonic() - started_s < 1
