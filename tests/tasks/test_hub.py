"""Data sets: what is held out is never trained on, and what is wrong is named before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from longrein.errors import TaskError
from longrein.tasks.base import Split
from longrein.tasks.source import SourceKind, TaskChoice, chosen_source
from longrein.types import Task


def written(path: Path, *rows: dict[str, Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def tasks(path: str | Path, split: Split = "train", kind: SourceKind = "dataset") -> list[Task]:
    return list(chosen_source(TaskChoice(kind=kind, path=str(path))).tasks(split, 99, 0))


def test_what_was_published_as_a_test_is_never_trained_on(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}"} for n in range(10)]
    written(tmp_path / "alone" / "test.jsonl", *rows)
    assert tasks(tmp_path / "alone") == []
    assert len(tasks(tmp_path / "alone", "test")) == 10
    written(tmp_path / "both" / "test.jsonl", *rows[:4])
    written(tmp_path / "both" / "train.jsonl", *rows[4:])
    assert {task.prompt for task in tasks(tmp_path / "both")} == {f"p{n}" for n in range(4, 10)}
    assert {task.prompt for task in tasks(tmp_path / "both", "test")} == {f"p{n}" for n in range(4)}


def test_rows_without_ids_of_their_own_have_different_ones_in_all_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        written(tmp_path / f"{split}.jsonl", *({"prompt": f"p{n}"} for n in range(3)))
    ids = [task.task_id for split in ("train", "test") for task in tasks(tmp_path, split)]
    assert len(set(ids)) == 6


def test_one_id_in_both_splits_is_refused_before_anything_is_split(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n}", "task_id": n % 3} for n in range(5)]
    with pytest.raises(TaskError, match=r"(?s)2 rows .*row 3: row 0 has the task_id '0', too.*row 4: row 1"):
        tasks(written(tmp_path / "rows.jsonl", *rows))


def test_none_is_no_id(tmp_path: Path) -> None:
    rows = [{"task_id": 5 if n else None, "text": "t", "test_list": ["assert f()"]} for n in range(3)][:2]
    found = tasks(written(tmp_path / "m.jsonl", *rows), kind="mbpp") + tasks(tmp_path / "m.jsonl", "test", "mbpp")
    assert {task.task_id for task in found} == {"mbpp-0", "mbpp-5"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"prompt": "p"}\n{bad\n', r"x\.jsonl: datasets cannot load it: .*JSON parse error.* in row 1"),
        ("", "datasets cannot load it"),
    ],
)
def test_files_that_cannot_be_loaded_are_task_errors(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(TaskError, match=says):
        tasks(tmp_path / "x.jsonl")
