"""The benchmark of the gateway runs, and says what the design asks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny

BENCH = Path(__file__).parent.parent / "bench" / "gateway.py"
BUDGETS = {
    "8k/200 growing, ms",
    "8k/200 repeated, ms",
    "8k/200 streamed, ms",
    "paced event, us",
    "memory of an extending call, kB",
    "calls a second and core",
    "added latency, ms",
    "500 sessions, MB",
}


@pytest.mark.agents
def test_quick_run_measures_every_budget(tmp_path: Path) -> None:
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    done = subprocess.run(
        [
            sys.executable,
            str(BENCH),
            "--quick",
            "--model",
            str(tmp_path / "model"),
            "--folder",
            str(tmp_path / "bench"),
        ],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert set(report["budgets"]) == BUDGETS
    assert all(budget["measured"] > 0 for budget in report["budgets"].values())
    assert set(report["cells"]["8k/200 growing x16"]) == {"floor", "longrein", "longrein-qwen3", "longrein-in-process"}
    crowd = report["extras"]["crowd"]
    assert crowd["calls"] == crowd["delivered"] == 500 * 6
