"""Grades many answers fast: plain processes, and a fork in which the hidden test's own program runs."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from longrein.tasks.families.base import Draft
from longrein.types import Task
from tests.tasks.grading import reward_in, write_tree

# What judges import, loaded once for all forks.
for name in ("ast", "ctypes", "hashlib", "tarfile", "resource", "shutil"):
    importlib.import_module(name)


def quickly(task: Task, commands: Sequence[str]) -> float:
    """The reward after these shell commands."""
    with tempfile.TemporaryDirectory() as temporary:
        root, work = Path(temporary), Path(temporary) / "work"
        write_tree(work, task.files)
        for command in commands:
            shell = ["bash", "-c", command]
            subprocess.run(shell, cwd=work, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
        write_tree(root / "tests", task.tests)
        child = os.fork()
        if not child:
            _judge(root)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, (task.task_id, commands)
        return reward_in(root / "logs/verifier")


def _judge(root: Path) -> None:
    """In the fork: what ``test.sh`` does."""
    code = 1
    try:
        os.chdir(root / "work")
        os.environ["SANDBOX_ROOT"] = str(root)
        # The last word of test.sh is the program.
        program = (root / "tests/test.sh").read_text().split("/")[-1].strip(' "\n')
        for name in ("verdict", "limited", "remote", "wire"):
            sys.modules.pop(name, None)
        runpy.run_path(str(root / "tests" / program), run_name="__main__")
        code = 0
    finally:
        os._exit(code)


def reports(family: str, seeds: int) -> dict[str, object]:
    """What is wrong with a family over so many seeds; see ``test_procedural.py``."""
    from longrein.tasks.families.registry import FAMILIES
    from longrein.tasks.suite import ProceduralSuite

    wrong: list[str] = []
    prompts: set[str] = set()
    levels = FAMILIES[family].levels
    names: set[str] = set()
    for seed in range(seeds):
        level = levels[seed % len(levels)]
        task, draft = drawn(family, level, seed)
        prompts.add(f"{task.prompt}{sorted(task.files.items())}")
        wrong += [] if quickly(task, task.oracle) == 1.0 else [f"seed {seed}, level {level}: the oracle fails"]
        for name, commands in {"no_op": (), **draft.trivial}.items():
            names.add(name)
            wrong += [] if quickly(task, commands) == 0.0 else [f"seed {seed}, level {level}: {name} passes"]
    assert ProceduralSuite(families=(family,)).tasks("train", 1, 0)
    return {"wrong": wrong, "different": len(prompts), "answers": sorted(names)}


def drawn(family: str, level: int, seed: int) -> tuple[Task, Draft]:
    from longrein.tasks.families.registry import FAMILIES
    from longrein.tasks.suite import ProceduralSuite, drafts

    draft = next(drafts(FAMILIES[family], "train", seed, level))
    task = ProceduralSuite(families=(family,), levels=(level,)).tasks("train", 1, seed)[0]
    assert task.prompt == draft.prompt
    return task, draft


if __name__ == "__main__":
    sys.stdout.write(json.dumps(reports(sys.argv[1], int(sys.argv[2]))))
