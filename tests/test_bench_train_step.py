"""The benchmark of the training step runs, its ways agree on the gradient, and it judges its goals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.mark.agents
def test_a_quick_run_measures_every_way() -> None:
    options = ["--quick", "--without-trl"]
    done = subprocess.run(
        [sys.executable, str(BENCH / "train_step.py"), *options],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(done.stdout.splitlines()[-1])["cases"].values()
    assert case["gradient_difference"]["tree"] < 1e-5
    assert case["fed_tokens"]["tree"] == case["fed_tokens"]["floor"] < case["row_tokens"]
    assert 0 < case["peak_mb"]["tree"] < case["peak_mb"]["plain"]


def test_a_missing_peer_fails_the_benchmark() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "train_step.py")], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 2
    assert "--without-trl" in done.stderr


def test_goals_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from step_bench.report import exit_code, goals  # pyright: ignore[reportMissingImports]  # bench/ is no package

    def case(**ratios: float) -> dict[str, Any]:
        return {"times_tree": {"cpu_s": {way.replace("_", " "): ratio for way, ratio in ratios.items()}}}

    held = goals(
        {
            "5m 8k": case(trl_untied=1.9, trl_trie=1.0, floor=0.86),
            "5m 2k": case(trl_untied=1.0),
            "5m unshared": case(plain=0.99),
        }
    )
    assert [goal["holds"] for goal in held.values()] == [False, True, False, False]
    assert exit_code(held) == 1
    assert exit_code(goals({"5m 8k": case(trl_untied=2.0), "5m 2k": case()})) == 0
    assert exit_code({}) == 0, "a peer that was left out by name"
