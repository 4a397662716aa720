"""The benchmark of trace -> rows runs, asks for its peer, and our time is near its budget."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench" / "rows.py"


def test_rows_are_measured() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--without-trl", "--rounds", "5"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    # A busy machine may miss the budget; the exit code has to say so then.
    assert done.returncode == int("DOES NOT HOLD" in done.stdout), done.stderr
    cases = json.loads(done.stdout.splitlines()[-1])["cases"]
    assert (cases["one conversation"]["tokens"], cases["one conversation"]["rows"]) == (110_000, 1)
    assert cases["50 forks"]["rows"] == 51
    assert cases["one conversation, parents unknown"]["row_tokens"] == 110_000
    # Ten times the budget: other work on the machine may not fail a test, but quadratic work shall.
    assert cases["one conversation"]["cpu_ms"]["longrein"] < 10


def test_a_budget_that_does_not_hold_fails_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(BENCH), "--without-trl", "--rounds", "1"])
    rows = runpy.run_path(str(BENCH))["main"]
    for budget_ms, code in ((1e9, 0), (0.0, 1)):
        monkeypatch.setitem(rows.__globals__, "BUDGET_MS", budget_ms)
        assert rows() == code


def test_a_missing_peer_fails_the_benchmark(tmp_path: Path) -> None:
    for options, says in (([], "--without-trl"), (["--trl", str(tmp_path)], "trl")):
        done = subprocess.run(
            [sys.executable, str(BENCH), *options], capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode != 0
        assert says in done.stderr
