"""Admission bounds staleness before a token is sampled."""

from __future__ import annotations

import multiprocessing
import os
import queue
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrein.errors import WorkerError
from longrein.rollout.buffer import AdmissionRule, Ledger, MetricsQueue, RolloutBuffer
from longrein.rollout.group import RewardSettings, score_group
from longrein.rollout.pipe import Inbox, Outbox
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


@pytest.mark.alone
def test_groups_travel_whole_and_an_empty_queue_says_so() -> None:
    context = multiprocessing.get_context("spawn")
    reading, writing = context.Pipe(duplex=False)
    buffer, outbox = RolloutBuffer(Inbox(reading), Ledger(context), lambda: None), Outbox(writing)
    group = score_group("g", TASK, [rollout("a", [call(0, None, [1], [2])])], RewardSettings())
    with pytest.raises(queue.Empty):
        buffer.get(timeout=0.01)
    assert buffer.ledger.taken == 0
    outbox.put(group)
    got = buffer.get(timeout=60)
    assert got.rollouts[0].trace.calls[0].completion.token_ids.tolist() == [2]
    assert buffer.ledger.taken == 1
    assert not buffer.ledger.waiting
    started_s = time.monotonic()
    for _ in range(3):
        outbox.put(bytes(1_000_000))
    buffer.close()
    assert time.monotonic() - started_s < 20, "nobody reads, and nobody waits for that"


@pytest.mark.parametrize("written", [b"", b"\0", struct.pack("!i", 5_000_000) + b"half a message"])
def test_a_writer_that_dies_in_the_middle_ends_the_wait(written: bytes) -> None:
    context = multiprocessing.get_context("spawn")
    reading, writing = context.Pipe(duplex=False)
    os.write(writing.fileno(), written)
    writing.close()

    def explain() -> None:
        raise WorkerError("it was killed")

    buffer = RolloutBuffer(Inbox(reading), Ledger(context), explain)
    with pytest.raises(WorkerError, match="it was killed"):
        buffer.get(timeout=60)
    assert not buffer.ledger.waiting
    with pytest.raises(WorkerError, match="hung up"):
        RolloutBuffer(Inbox(reading), Ledger(context), lambda: None).get(timeout=60)
    with pytest.raises(queue.Empty):
        MetricsQueue(Inbox(reading)).get_nowait()
    buffer.close()
