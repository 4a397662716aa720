from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from longrein.errors import TaskError
from longrein.tasks.harbor import export_task
from longrein.tasks.source import task_source
from longrein.types import Task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(11):
        export_task(Task(task_id=f"t{number}", prompt="Do it.", tests={"test.sh": b""}), tmp_path)
    return tmp_path


def ids(tasks: object) -> list[str]:
    return [task.task_id for task in tasks]  # pyright: ignore


def test_a_harbor_folder_splits_alike_whatever_the_seed(folder: Path) -> None:
    source = task_source(kind="harbor", folder=str(folder))
    train, test = ids(source.tasks("train", 100, 0)), ids(source.tasks("test", 100, 0))
    assert len(test) == 2
    assert sorted(train + test) == sorted(f"t{n}" for n in range(11))
    assert set(ids(source.tasks("test", 100, 5))) == set(test)
    assert ids(source.tasks("train", 100, 0)) == train
    assert ids(source.tasks("train", 100, 5)) != train
    assert ids(source.tasks("train", 3, 0)) == train[:3]


def test_one_task_alone_is_a_train_task(tmp_path: Path) -> None:
    export_task(Task(task_id="only", prompt="Do it.", tests={"test.sh": b""}), tmp_path)
    source = task_source(kind="harbor", folder=str(tmp_path))
    assert (ids(source.tasks("train", 9, 0)), ids(source.tasks("test", 9, 0))) == (["only"], [])


def test_the_procedural_source_is_the_suite() -> None:
    source = task_source(kind="procedural", families=["spell_number"])
    assert ids(source.tasks("test", 1, 3)) == ["spell_number-test-3-00000"]
    assert pickle.loads(pickle.dumps(source)) == source


def test_unknown_families_and_missing_folders_are_errors_before_anything_is_drawn() -> None:
    with pytest.raises(TaskError, match="'nope'; known: write_number"):
        task_source(kind="procedural", families=["nope"])
    with pytest.raises(TaskError, match="needs a folder"):
        task_source(kind="harbor")
