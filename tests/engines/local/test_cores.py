"""Threads are given up while others want the cores, and what is computed does not depend on them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.cores import CoreTimes, ThreadCount, read_core_times
from longrein.engines.local.model import load_model
from tests import tiny
from tests.engines.local.reference import Driver, random_ids, request
from tests.waiting import wait_until


def _times(wall_s: float, others_s: float, own_s: float, cores: int = 4) -> CoreTimes:
    return CoreTimes(cores=cores, everybody_s=others_s + own_s, own_s=own_s, wall_s=wall_s)


@pytest.mark.parametrize(
    ("others_s", "threads"), [(0.0, 4), (0.2, 4), (0.5, 3), (1.0, 3), (1.5, 2), (2.9, 1), (4.0, 1), (9.0, 1)]
)
def test_each_core_that_others_keep_busy_costs_a_thread(others_s: float, threads: int) -> None:
    count = ThreadCount(4)
    assert count.after(_times(10.0, 50.0, 7.0)) == 4
    assert count.after(_times(11.0, 50.0 + others_s, 7.0 + 4 - others_s)) == threads
    # And back, as soon as they stop.
    assert count.after(_times(12.0, 50.0 + others_s, 11.0)) == 4


def test_own_time_and_more_cores_than_threads_cost_none() -> None:
    count = ThreadCount(2)
    count.after(_times(0.0, 0.0, 0.0, cores=16))
    assert count.after(_times(1.0, 13.0, 2.0, cores=16)) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/stat")
def test_the_kernel_tells_of_a_busy_process_and_of_ourselves() -> None:
    began_s = time.process_time()
    before = read_core_times()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            # On a machine that is busy already it takes a while to get so much of a core.
            wait_until(lambda: psutil.Process(busy.pid).cpu_times().user > 0.5)
            after = read_core_times()
        finally:
            busy.kill()
    assert after.cores == len(os.sched_getaffinity(0))
    assert after.everybody_s - before.everybody_s - (after.own_s - before.own_s) > 0.2
    assert 0 <= after.own_s - before.own_s <= time.process_time() - began_s


def test_the_number_of_threads_changes_no_bit_of_a_request_alone(tmp_path: Path) -> None:
    # Wide enough for every kernel to share its work out.
    folder = tiny.save_model(tmp_path, "llama", hidden_size=128, intermediate_size=1536)
    model = load_model(LocalEngineConfig(model=str(folder), threads=1))
    seen: list[list[bytes]] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            done = [Driver(model).run(request("c", random_ids(i, 150 + 31 * i), max_tokens=6))[0] for i in range(3)]
            seen.append([part for one in done for part in (one.token_ids.tobytes(), one.logprobs.tobytes())])
    finally:
        torch.set_num_threads(1)
    assert seen[0] == seen[1] == seen[2]
