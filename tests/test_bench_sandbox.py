"""The benchmark of sandboxes runs, and says what the design asks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench" / "sandbox.py"


@pytest.mark.agents
def test_quick_run_measures_start_and_close() -> None:
    done = subprocess.run([sys.executable, str(BENCH), "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["sessions"] == 10
    assert 0 < figures["bare_program"] < figures["walled_start"]
    # The budget is 50 ms on a machine that does nothing else; here it is a matter of proportion.
    assert figures["ratio"] < 5
    assert abs(figures["beyond_plain"] - (figures["walled_start"] - figures["plain_start"])) < 1e-6
