"""Every finished group is on disk once, whatever its reward functions do, and none of them stops the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from longrein.errors import ConfigError
from longrein.rollout.group import RewardSettings
from longrein.rollout.settle import Settler
from longrein.rollout.turns import TurnSettings
from longrein.store import RunStore, read_groups
from longrein.types import RolloutGroup
from longrein.views import Outcome
from tests.gateway.rig import until
from tests.rollout.broken import divides_by_zero
from tests.traces import TASK, call, rollout


def group(group_id: str) -> RolloutGroup:
    members = tuple(rollout(f"{group_id}-{n}", [call(0, None, [1], [2])], float(n), group_id=group_id) for n in (0, 1))
    return RolloutGroup(group_id=group_id, task=TASK, rollouts=members)


def on_disk(folder: Path) -> dict[str, tuple[float | None, ...]]:
    groups = list(read_groups(folder))
    assert len({found.group_id for found in groups}) == len(groups), "a group is written once"
    return {found.group_id: found.rewards for found in groups}


async def test_a_failing_reward_function_loses_no_rollout(tmp_path: Path) -> None:
    settler = Settler(RunStore(tmp_path), RewardSettings(reward_funcs=(divides_by_zero,)), TurnSettings())
    with pytest.raises(ConfigError, match="divides_by_zero failed on task t: ZeroDivisionError"):
        await settler.settle(group("g0"))
    settler.close()
    assert on_disk(tmp_path) == {"g0": ()}


async def test_a_slow_judge_neither_stops_the_loop_nor_loses_what_waits_for_it(tmp_path: Path) -> None:
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(outcome: Outcome) -> float:
        began.set()
        release.wait(60)
        ended.set()
        return 3.0

    settler = Settler(RunStore(tmp_path), RewardSettings(rollout_reward_fn=slow), TurnSettings())
    waiting = [asyncio.create_task(settler.settle(group(name))) for name in ("g0", "g1")]
    await until(began.is_set)
    assert not ended.is_set(), "the loop goes on while a judge thinks"
    for task in waiting:
        task.cancel()
    settler.close()
    assert on_disk(tmp_path) == {"g0": (), "g1": ()}
    release.set()
    settler._executor.shutdown(wait=True)
    assert len(on_disk(tmp_path)) == 2, "the judge that was left behind does not write its group again"


async def test_a_settled_group_has_its_rewards_on_disk(tmp_path: Path) -> None:
    settler = Settler(RunStore(tmp_path), RewardSettings(), TurnSettings())
    settled = await settler.settle(group("g0"))
    assert settled.rewards == (0.0, 1.0)
    settler.close()
    assert on_disk(tmp_path) == {"g0": (0.0, 1.0)}


async def test_a_group_that_is_being_written_at_the_end_is_on_disk_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker, who opens the folder then, throws away what is half written."""
    store = RunStore(tmp_path)
    append, writing, go_on = store.append, threading.Event(), threading.Event()

    def slow(written: RolloutGroup) -> Path:
        writing.set()
        assert go_on.wait(60)
        return append(written)

    monkeypatch.setattr(store, "append", slow)
    settler = Settler(store, RewardSettings(), TurnSettings())
    settling = asyncio.create_task(settler.settle(group("g0")))
    await until(writing.is_set)
    closing = asyncio.create_task(asyncio.to_thread(settler.close))
    done, _ = await asyncio.wait([closing], timeout=0.3)
    assert not done
    go_on.set()
    await closing
    assert on_disk(tmp_path) == {"g0": (0.0, 1.0)}
    await settling
