"""Runs a task's commands and hidden test as plain processes, the way a sandbox without mounts would."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from longrein.types import Task


def grade(task: Task, commands: Sequence[str]) -> float:
    """The reward after these shell commands, each in a fresh shell."""
    with tempfile.TemporaryDirectory() as temporary:
        root, work = Path(temporary), Path(temporary) / "work"
        write_tree(work, task.files)
        for command in commands:
            shell = ["bash", "-c", command]
            subprocess.run(shell, cwd=work, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
        write_tree(root / "tests", task.tests)
        environment = {"PATH": "/usr/bin:/bin", "SANDBOX_ROOT": str(root)}
        subprocess.run(["sh", root / "tests/test.sh"], cwd=work, capture_output=True, env=environment, check=True)
        return reward_in(root / "logs/verifier")


def write_tree(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def reward_in(logs: Path) -> float:
    if (logs / "reward.txt").exists():
        return float((logs / "reward.txt").read_text())
    return float(json.loads((logs / "reward.json").read_text())["reward"])
