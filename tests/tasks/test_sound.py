"""What would end a run in the middle is found before it, in every task at once."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import TaskError
from longrein.tasks.from_row import task_from_row
from longrein.tasks.sound import check_all, problem_of, require_different, require_sound
from longrein.types import Task

GOOD = Task(task_id="t", prompt="p", files={"a/b": b"", "c": b""}, tests={"test.sh": b"", "c": b""})
DEEP: list[Any] = []
for _ in range(2000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"task_id": " "}, "task_id is empty"),
        ({"prompt": "\n"}, "prompt is empty"),
        ({"prompt": "a\0b"}, "prompt holds a NUL"),
        ({"agent_timeout_s": -1.0}, "agent_timeout_s is -1.0"),
        ({"agent_timeout_s": math.nan}, "agent_timeout_s is nan"),
        ({"verifier_timeout_s": math.inf}, "verifier_timeout_s is inf"),
        ({"verifier_timeout_s": 0.0}, "verifier_timeout_s is 0.0"),
        ({"files": {"../x": b""}}, "leaves its folder"),
        ({"files": {"//x": b""}}, "leaves its folder"),
        ({"files": {"a\0b": b""}}, "leaves its folder"),
        ({"tests": {"": b""}}, "leaves its folder"),
        ({"tests": {"./a": b"", "a": b""}}, "are the same file"),
        ({"files": {"a/b/c": b"", "a": b""}}, r"'a/b/c' lies in 'a', which is a file"),
        ({"metadata": {"n": 10**40}}, "cannot be written down"),
        ({"metadata": {"n": DEEP}}, "cannot be written down"),
        ({"metadata": {"n": object()}}, "cannot be written down"),
        ({"prompt": "\ud800"}, "cannot be written down"),
        ({"files": {"\udcff": b""}}, "cannot be written down"),
    ],
)
def test_what_would_end_a_run_is_named(changes: dict[str, Any], problem: str) -> None:
    require_sound(GOOD)
    with pytest.raises(TaskError, match=problem):
        require_sound(msgspec.structs.replace(GOOD, **changes))


def test_every_bad_task_is_named_and_a_problem_of_all_is_named_once() -> None:
    tasks = [msgspec.structs.replace(GOOD, task_id=f"t{n}", prompt="p" if n % 2 else "") for n in range(30)]
    with pytest.raises(TaskError, match=r"(?s)15 problems .*task 't0': .*task 't18': .*and 5 more"):
        check_all(tasks, require_sound)

    def without_judge(task: Task) -> None:
        raise TaskError("there is no judge")

    with pytest.raises(TaskError, match=r"^there is no judge$"):
        check_all(tasks, without_judge)
    with pytest.raises(TaskError, match=r"several tasks have the task_id 't3';"):
        require_different([*tasks, tasks[3]])


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**70, -1.0, math.nan, math.inf, "\ud800", "a\0", b"\xff", "../x", ""])
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "a/b", "../c", "base64", "role", "content", "\ud800", ""]), inner)
    ),
    max_leaves=6,
)
columns = st.sampled_from(["task_id", "prompt", "files", "tests", "oracle", "verdict", "agent_timeout_s", "other", ""])


@settings(deadline=None, max_examples=200)
@given(row=st.dictionaries(columns, values, max_size=4))
def test_whatever_a_row_holds_it_is_a_sound_task_or_a_task_error(row: dict[str, Any]) -> None:
    try:
        task = task_from_row("row 3", "3", {"prompt": "p", **row})
    except TaskError as error:
        assert str(error).startswith("row 3")
        return
    assert not problem_of(task)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=Task).prompt == task.prompt
