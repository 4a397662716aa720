"""Harbor itself (its own command line) on our bubblewrap, with a task that we exported. Run by ``make test-harbor``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from longrein.tasks.harbor import export_task
from longrein.types import Task

pytestmark = pytest.mark.harbor


@pytest.fixture(autouse=True)
def harbor() -> None:
    pytest.importorskip("harbor", reason="Harbor needs Python 3.12, and make test-harbor found none")


CHECK = b"""#!/bin/sh
cmp -s answer.txt /tests/wanted.txt && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""
TASK = Task(
    task_id="copy-a-line",
    prompt="Copy the first line of notes.txt into answer.txt.",
    files={"notes.txt": b"forty-two\nmore\n", "tools/head.sh": b'head -n 1 "$1"\n'},
    tests={"test.sh": CHECK, "wanted.txt": b"forty-two\n"},
    oracle=("sh tools/head.sh notes.txt > answer.txt",),
)
QUIET = {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""It would ask the network, several times, before it begins."""


def run_harbor(folder: Path, agent: str) -> dict[str, Any]:
    """One trial; its result."""
    task = export_task(TASK, folder / agent)
    # Its bare folder is no definition to Harbor, and the Dockerfile's WORKDIR must be heeded.
    (task / "environment" / "Dockerfile").write_text("FROM debian:12\nWORKDIR /app\nRUN apt-get install -y nothing\n")
    jobs = folder / f"jobs-{agent}"
    command = ["run", "-p", str(task), "-a", agent, "-o", str(jobs), "-n", "1", "-q"]
    environment = ["--environment-import-path", "longrein.integrations.harbor:BubblewrapEnvironment"]
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("harbor")), *command, *environment],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    results = list(jobs.glob("*/*/result.json"))
    assert len(results) == 1, ran.stdout[-3000:] + ran.stderr[-3000:]
    return json.loads(results[0].read_text())


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_an_exported_task_is_solved_by_its_oracle_and_by_nobody_else(agent: str, reward: float, tmp_path: Path) -> None:
    result = run_harbor(tmp_path, agent)
    assert result["exception_info"] is None
    assert result["verifier_result"]["rewards"] == {"reward": reward}
    left = [process.name() for process in psutil.Process().children(recursive=True)]
    assert "bwrap" not in left
