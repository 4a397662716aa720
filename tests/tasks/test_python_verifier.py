"""A function in Python as the judge."""

from __future__ import annotations

import asyncio
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from longrein.errors import TaskError
from longrein.sandboxes.base import SandboxBackend, WorkFile, WorkTree
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.tasks.python_verifier import PythonVerifier
from longrein.types import Score, Task


@pytest.fixture
def backend(tmp_path: Path) -> SandboxBackend:
    return BubblewrapBackend(root=str(tmp_path / "sandboxes"))


TASK = Task(task_id="t", prompt="p", metadata={"want": "4"})


def by_file(task: Task, work: WorkTree) -> Any:
    return {
        "dense": lambda: 0.25,
        "several": lambda: {"reward": 0.5, "length": len(work.files), "note": "x"},
        "score": lambda: Score(reward=0.75, metrics={"a": 1.0}),
        "none": lambda: None,
        "nan": lambda: float("nan"),
        "text": lambda: "1",
        "crash": lambda: work.files["absent"],
        "hang": lambda: time.sleep(2),
        "huge": lambda: 10**400,
        "too huge": lambda: 10**5000,
        "single": lambda: np.float32(0.5),
        "score of nan": lambda: Score(reward=float("nan"), metrics={"a": 1.0}),
        "score of text": lambda: Score(reward="1"),  # pyright: ignore[reportArgumentType]
        "score without reason": lambda: Score(reward=None),
        "reasoned score": lambda: Score(reward=None, reason="no answer.txt"),
        "odd metrics": lambda: Score(reward=1.0, metrics={"a": 10**400, "b": "x", "c": 2, "\ud800": 3}),  # pyright: ignore[reportArgumentType]
        "no metrics": lambda: Score(reward=1.0, metrics=None),  # pyright: ignore[reportArgumentType]
        "exit": lambda: sys.exit(3),
    }[task.prompt]()


async def later(task: Task, work: WorkTree) -> float:
    await asyncio.sleep(0)
    return float(work.files["answer.txt"].data.decode().strip() == task.metadata["want"])


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("dense", Score(reward=0.25)),
        ("several", Score(reward=0.5, metrics={"length": 1.0})),
        ("score", Score(reward=0.75, metrics={"a": 1.0})),
        ("none", "gave no verdict"),
        ("nan", "not a finite number"),
        ("text", "gave '1'"),
        ("crash", "failed: KeyError: 'absent'"),
        ("hang", "ran past 0.2 s"),
        ("huge", "not a finite number"),
        ("too huge", "failed: ValueError"),
        ("single", Score(reward=0.5)),
        ("score of nan", "not a finite number"),
        ("score of text", "not a finite number"),
        ("score without reason", "not a finite number"),
        ("reasoned score", "no answer.txt"),
        ("odd metrics", Score(reward=1.0, metrics={"c": 2.0, "?": 3.0})),
        ("no metrics", "failed: TypeError"),
        ("exit", "it called exit(3)"),
    ],
)
async def test_a_python_function_may_judge(backend: SandboxBackend, what: str, expected: Score | str) -> None:
    verifier = PythonVerifier(function=f"{__file__}:by_file", timeout_s=0.2 if what == "hang" else 20)
    work = WorkTree(files={"answer.txt": WorkFile(data=b"4\n")})
    verdict = await verifier.verify(msgspec.structs.replace(TASK, prompt=what), work, backend)
    if isinstance(expected, Score):
        assert verdict == expected
    else:
        assert verdict.reward is None and expected in verdict.reason


async def test_it_may_be_a_coroutine_and_travels(backend: SandboxBackend) -> None:
    verifier = pickle.loads(pickle.dumps(PythonVerifier(function=f"{__file__}:later")))
    verifier.check(TASK)
    assert await verifier.verify(TASK, WorkTree(files={"answer.txt": WorkFile(data=b"4\n")}), backend) == Score(
        reward=1.0
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("judge", "give module:function"),
        ("no.such:f", "cannot be imported"),
        ("math:nope", "no function 'nope'"),
        ("/no.py:f", "cannot"),
    ],
)
def test_a_function_that_is_not_there_is_said_beforehand(name: str, problem: str) -> None:
    with pytest.raises(TaskError, match=problem):
        PythonVerifier(function=name).check(TASK)
