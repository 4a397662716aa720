"""The benchmark of the engine runs, and every contender samples what it was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench" / "engine.py"


@pytest.mark.agents
def test_a_quick_round_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--without-vllm", "--threads", "1"],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    (model,) = summary["results"].values()
    assert set(model["start_to_first_token_s"]) == {"longrein", "generate", "generate-batch"}
    for case in model["cases"].values():
        assert set(case["times_peer"]["tokens_per_s"]) == {"generate", "generate-batch"}
        assert all(rate > 0 for rate in case["tokens_per_s"].values())
    judged = {goal["goal"]: goal["verdict"] for goal in summary["goals"]}
    assert judged["5m-fp32: seconds from start to first token"] in ("pass", "fail")
    assert judged["5m-fp32-150 x8: vLLM's rate"] == "not measured"


def test_a_missing_peer_fails_the_benchmark() -> None:
    done = subprocess.run([sys.executable, str(BENCH)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    assert "--without-vllm" in done.stderr
