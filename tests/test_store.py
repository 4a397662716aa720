"""The run directory keeps every rollout exactly, and survives being cut off."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import TraceError
from longrein.rollout.group import RewardSettings, score_group
from longrein.rollout_lines import SCHEMA
from longrein.store import RunStore, read_groups
from longrein.types import Call, Failure, Finding, Message, RolloutGroup, Score
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


FOREIGN = {
    "another table": pa.table({"a": [1]}),
    "other types": pa.table({name: pa.array([[1.5]]) for name in SCHEMA.names}),
    "no lines": pa.Table.from_pylist([], SCHEMA),
    "no task": pa.Table.from_pylist([{"group_id": "g", "task_id": "t", "calls": []}], SCHEMA),
    "a broken task": pa.Table.from_pylist(
        [{"group_id": "g", "task_id": "t", "session_id": "s", "status": "failed", "calls": [], "task": b"\xc1"}], SCHEMA
    ),
}


@pytest.mark.parametrize("table", FOREIGN)
def test_foreign_tables_are_one_clear_error(tmp_path: Path, table: str) -> None:
    store = RunStore(tmp_path)
    pq.write_table(FOREIGN[table], tmp_path / "rollouts" / "000000-g000000.parquet")
    with pytest.raises(TraceError, match=r"000000-g000000\.parquet: not a readable rollout file"):
        for file in store.files():
            file.read()
    with pytest.raises(TraceError, match=r"000000-g000000\.parquet: not a readable rollout file"):
        list(read_groups(tmp_path))


def test_a_file_with_a_name_of_its_own_is_named(tmp_path: Path) -> None:
    RunStore(tmp_path)
    (tmp_path / "rollouts" / "all.parquet").write_bytes(b"")
    with pytest.raises(TraceError, match=r"all\.parquet: not named like a rollout file"):
        RunStore(tmp_path)


def test_words_that_no_file_can_hold_lose_no_rollout(tmp_path: Path) -> None:
    member = msgspec.structs.replace(
        rollout("a", [], findings=(Finding(kind="outside_symlink", detail="a -> \udcff"),)),
        failure=Failure(kind="session", message="no file \udcff"),
        score=Score(reward=None, reason="no file \udcff"),
    )
    RunStore(tmp_path).append(score_group("g", TASK, [member], RewardSettings()))
    (group,) = read_groups(tmp_path)
    assert group.rollouts[0].failure is not None and group.rollouts[0].findings[0].detail == "a -> ?"
    assert group.rollouts[0].failure.message == group.rollouts[0].score.reason == "no file ?"
