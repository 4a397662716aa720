"""Where numbers go."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

from rich.console import Console

from longrein.metrics import JsonlSink, LossSink, TableSink, rewind


def test_lines_are_json_at_once_and_not_finite_is_null(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "run" / "metrics.jsonl")
    sink.write(1, {"reward": 0.5, "loss": math.nan})
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["reward"] == 0.5
    assert json.loads(lines[0])["loss"] is None
    sink.close()
    again = JsonlSink(tmp_path / "run" / "metrics.jsonl")
    again.write(2, {})
    again.close()
    assert [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()] == [
        1,
        2,
    ]


def test_a_run_that_goes_on_from_a_step_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rewind(path, 0)
    assert not path.exists()
    sink = JsonlSink(path)
    for step in (1, 2, 3):
        sink.write(step, {})
    sink.close()
    path.write_bytes(path.read_bytes() + b'{"step": 4, "rew')
    rewind(path, 2)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics-undone.jsonl").read_text().splitlines()] == [3]


def test_the_table_shows_failures_by_reason_and_the_time_left() -> None:
    out = io.StringIO()
    sink = TableSink(Console(file=out, width=80), max_steps=4)
    sink.write(1, {"reward": 0.25, "staleness_mean": 0.5, "count/failed_sandbox": 2.0, "count/failed_engine": 0.0})
    head, line = out.getvalue().splitlines()
    assert "reward" in head
    assert "1/4" in line
    assert "0.250" in line
    assert "failures: sandbox 2" in line
    assert "engine" not in line.partition("failures")[2]
    assert "min" in line


def test_a_loss_line_says_where_it_is() -> None:
    out = io.StringIO()
    LossSink(Console(file=out), "sft", 3).write(2, {"loss": 0.5})
    LossSink(Console(file=out), "sft", 3).write(3, {})
    assert [line.strip() for line in out.getvalue().splitlines()] == [
        "sft: step 2/3, loss 0.500",
        "sft: step 3/3, loss -",
    ]
