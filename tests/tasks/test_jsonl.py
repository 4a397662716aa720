"""JSON lines: every bad line named, and what is written read back as it was."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pytest

from longrein.errors import TaskError
from longrein.tasks.jsonl import read_jsonl, write_jsonl
from longrein.types import Task


def test_every_line_whose_id_was_there_before_is_named_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": "p", "task_id": 3}\n\n{"prompt": "q"}\n{"prompt": "r", "task_id": "3"}\n')
    with pytest.raises(TaskError) as caught:
        read_jsonl(path)
    said = str(caught.value)
    assert "2 problem(s)" in said
    for line in (3, 4):
        assert f"{path}:{line}: task_id '3' comes twice, in line 1 too" in said


BAD_LINES = {
    '{"prompt": "\\ud800"}': "cannot be written down",
    '{"prompt": "p", "files": {"a": "\\udfff"}}': "file 'a' of 'files' is no text",
    '{"prompt": "p", "n": 123456789012345678901234567890}': "cannot be written down",
    '{"prompt": "p", "agent_timeout_s": -5}': "agent_timeout_s is -5.0",
    '{"prompt": "p", "verifier_timeout_s": NaN}': "verifier_timeout_s is nan",
    '{"prompt": " "}': "prompt is empty",
    '{"prompt": "p", "task_id": []}': "'task_id' is of type list",
    '{"prompt": "p", "n": %s}' % ("1" * 5000): "bad JSON",
    "[" * 100_000: "bad JSON",
    '{"prompt": "p", "files": {"a": "", "a/b": ""}}': "lies in 'a'",
}


def test_lines_that_would_end_a_run_are_named_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(['{"prompt": "good"}', *BAD_LINES]))
    with pytest.raises(TaskError) as caught:
        read_jsonl(path)
    said = str(caught.value).splitlines()
    assert len(said) == 1 + len(BAD_LINES)
    for number, (line, problem) in enumerate(zip(said[1:], BAD_LINES.values(), strict=True), 2):
        assert line.startswith(f"  {path}:{number}") and problem in line


@pytest.mark.parametrize(
    "metadata",
    [
        {"x": math.nan},
        {"x": [math.inf]},
        {"x": (1, 2)},
        {"x": {1: 2}},
        {"x": b"1"},
        {"x": datetime.date(2020, 1, 2)},
        {"x": [None, "\ud800"]},
        {"x": 10**30},
    ],
)
def test_what_would_come_back_as_something_else_is_refused_before_anything_is_written(
    tmp_path: Path, metadata: dict[str, Any]
) -> None:
    good = Task(task_id="good", prompt="p", metadata={"x": [None, 1.5, {"y": "\x00ü"}], "n": 2**63})
    write_jsonl(tmp_path / "good.jsonl", [good])
    assert read_jsonl(tmp_path / "good.jsonl") == (good,)
    bad = [Task(task_id=name, prompt="p", metadata=metadata) for name in ("b1", "b2")]
    with pytest.raises(TaskError, match=r"(?s)2 problems .*task 'b1'.*task 'b2'"):
        write_jsonl(tmp_path / "bad.jsonl", [good, *bad])
    with pytest.raises(TaskError, match="several tasks have the task_id 'good'"):
        write_jsonl(tmp_path / "bad.jsonl", [good, good])
    assert not (tmp_path / "bad.jsonl").exists()
