"""Rows as users have them become tasks, or are named."""

from __future__ import annotations

from typing import Any

import datasets
import pytest

from longrein.errors import ConfigError
from longrein.rollout.dataset import tasks_from
from longrein.types import Task


def test_tasks_stay_and_rows_become_tasks() -> None:
    task = Task(task_id="t", prompt="p")
    row = {
        "prompt": "q",
        "tests": {"test.sh": "exit 0", "data": b"\xff", "none": None},
        "agent_timeout_s": 5,
        "verifier_timeout_s": None,
        "answer": [1, 2],
    }
    kept, made = tasks_from([task, row])
    assert kept is task
    assert made == Task(
        task_id="1",
        prompt="q",
        tests={"test.sh": b"exit 0", "data": b"\xff"},
        agent_timeout_s=5.0,
        metadata={"answer": [1, 2]},
    )


def test_a_datasets_dataset_is_one() -> None:
    """Its struct columns have every key in every row, ``None`` where a row had none."""
    rows = [
        {"prompt": [{"role": "user", "content": "a"}], "task_id": "x", "files": {"one": "1"}},
        {"prompt": [{"role": "user", "content": "b"}], "task_id": "y", "files": {"two": "2"}},
    ]
    made = tasks_from(datasets.Dataset.from_list(rows))
    assert [(task.task_id, task.prompt) for task in made] == [("x", "a"), ("y", "b")]
    assert [task.files for task in made] == [{"one": b"1"}, {"two": b"2"}]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "?"}, "dataset row 1 has no 'prompt'; it has 'question'"),
        ({"prompt": None}, "dataset row 1 has no 'prompt'; it has no columns"),
        ("text", "dataset row 1 is of type str"),
        ({"prompt": []}, r"dataset row 1: 'prompt' is \[\]"),
        ({"prompt": [{"role": "assistant", "content": "hi"}]}, "row 1: .* role 'assistant'"),
        ({"prompt": ["hi"]}, "row 1: .* role None"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "row 1: the user message .* give text"),
        ({"prompt": "a", "tests": "exit 0"}, "row 1: 'tests' is 'exit 0'"),
        ({"prompt": "a", "agent_timeout_s": "long"}, "row 1: .*agent_timeout_s"),
        ({"prompt": "a", "image": object()}, "row 1: .*object"),
    ],
)
def test_a_row_that_cannot_be_a_task_is_named(row: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tasks_from([{"prompt": "fine"}, row])


def test_many_bad_rows_are_one_error_of_bounded_length() -> None:
    with pytest.raises(ConfigError, match=r"100 tasks of the dataset cannot work:(?s:.*)and 95 more$"):
        tasks_from([{}] * 100)
