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
from longrein.types import Call, RolloutGroup
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
    members = [rollout("a", calls, reward), failed("b"), rollout("c", [], 0.0)]
    group = score_group("g", TASK, members, RewardSettings())
    RunStore(folder).append(group)
    assert [plain(found) for found in read_groups(folder)] == [plain(group)]


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
