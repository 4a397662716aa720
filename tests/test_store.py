"""The run directory keeps every rollout exactly, and survives being cut off."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import TraceError
from longrein.rollout.group import RewardSettings, score_group
from longrein.store import RunStore, read_groups
from longrein.types import Call, Finding, Message, RolloutGroup
from tests.traces import TASK, call, call_trees, failed, rollout


def plain(group: RolloutGroup) -> object:
    """Comparable form: arrays as lists with their dtypes."""

    def hook(value: object) -> object:
        assert isinstance(value, np.ndarray)
        return [str(value.dtype), value.tolist()]

    return msgspec.to_builtins(group, enc_hook=hook)


@settings(deadline=None, max_examples=25)
@given(calls=call_trees(), reward=st.none() | st.floats(-1, 1))
def test_what_was_written_is_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Call], reward: float | None
) -> None:
    folder = tmp_path_factory.mktemp("run")
    found = (Finding(kind="disk_limit", detail="ü"), Finding(kind="test_shadowing", detail="conftest.py"))
    members = [rollout("a", calls, reward, findings=found), failed("b"), rollout("c", [], 0.0)]
    group = score_group("g", TASK, members, RewardSettings())
    RunStore(folder).append(group)
    assert [plain(read) for read in read_groups(folder)] == [plain(group)]


def test_a_run_directory_from_before_there_were_findings(tmp_path: Path) -> None:
    path = RunStore(tmp_path).append(score_group("g", TASK, [rollout("a", []), failed("b")], RewardSettings()))
    pq.write_table(pq.read_table(path).drop_columns(["findings"]), path)
    (group,) = read_groups(tmp_path)
    assert [member.findings for member in group.rollouts] == [(), ()]


def test_a_prompt_that_came_again_is_written_once(tmp_path: Path) -> None:
    ids, other = list(range(5000)), [7, *range(1, 5000)]
    said: tuple[Message, ...] = ({"role": "user", "content": "hi"},)
    first, again = (call(at, None, ids, [at], messages=said) for at in (0, 2))
    reworded = call(4, None, ids, [4])
    calls = [first, call(1, None, other, [1], messages=said), again, call(3, 2, [4], [5]), reworded]
    group = score_group("g", TASK, [rollout("a", calls)], RewardSettings())
    written = pq.read_table(RunStore(tmp_path).append(group))["calls"].to_pylist()[0]
    assert [line["prompt_of"] for line in written] == [None, None, 0, None, None]
    assert [len(line["prompt_delta"]) for line in written] == [5000, 5000, 0, 1, 5000]
    assert [plain(found) for found in read_groups(tmp_path)] == [plain(group)]


def test_numbering_goes_on_and_half_written_files_are_dropped(tmp_path: Path) -> None:
    group = score_group("g", TASK, [rollout("a", [call(0, None, [1], [2])])], RewardSettings())
    RunStore(tmp_path).append(group)
    half = tmp_path / "rollouts" / ".000001-x.parquet.part"
    half.write_bytes(b"PAR1half")
    path = RunStore(tmp_path).append(group)
    assert path.name.startswith("000001-")
    assert not half.exists()
    assert len(list(read_groups(tmp_path))) == 2


def test_others_can_read_it(tmp_path: Path) -> None:
    path = RunStore(tmp_path).append(score_group("g", TASK, [rollout("a", []), failed("b")], RewardSettings()))
    table = pq.read_table(path)
    assert table["harness_reward"].to_pylist() == [1.0, None]
    assert table["failure_kind"].to_pylist() == [None, "sandbox"]


def test_a_foreign_file_is_one_clear_error(tmp_path: Path) -> None:
    RunStore(tmp_path)
    (tmp_path / "rollouts" / "000000-g.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(TraceError, match=r"000000-g\.parquet: not a readable rollout file"):
        list(read_groups(tmp_path))
