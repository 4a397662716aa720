"""A function in Python as the judge."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from longrein.errors import TaskError
from longrein.sandboxes.base import SandboxBackend, WorkFile, WorkTree
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.tasks.python_verifier import PythonVerifier, load_function
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
        "hang": lambda: time.sleep(60),
        "numpy": lambda: {"reward": np.float32(0.5), "right": np.int64(3), "all": np.bool_(True)},
        "huge": lambda: 10**400,
        "huge metric": lambda: {"reward": 1, "n": 10**400},
        "too huge": lambda: 10**5000,
        "single": lambda: np.float32(0.5),
        "score of nan": lambda: Score(reward=float("nan"), metrics={"a": 1.0, "b": float("inf")}),
        "score of text": lambda: Score(reward="1"),  # pyright: ignore[reportArgumentType]
        "score without reason": lambda: Score(reward=None, metrics={"a": 1.0}),
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
        ("numpy", Score(reward=0.5, metrics={"right": 3.0, "all": 1.0})),
        ("huge", "not a finite number"),
        ("huge metric", Score(reward=1.0)),
        ("too huge", "failed: ValueError"),
        ("single", Score(reward=0.5)),
        ("score of nan", "not a finite number"),
        ("score of text", "not a finite number"),
        ("score without reason", "gave no verdict"),
        ("reasoned score", "no answer.txt"),
        ("odd metrics", Score(reward=1.0, metrics={"c": 2.0, "?": 3.0})),
        ("no metrics", "failed: TypeError"),
        ("exit", "ended with sys.exit(3)"),
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


GATE = threading.Event()


def waits(task: Task, work: WorkTree) -> float:
    GATE.wait(60)
    return 1.0


async def test_functions_that_hang_hold_up_nobody_else(backend: SandboxBackend) -> None:
    """The event loop has fewer threads of its own than there are verdicts here, and everything needs them."""
    verifier = PythonVerifier(function=f"{__file__}:waits", timeout_s=0.05)
    try:
        verdicts = await asyncio.gather(*(verifier.verify(TASK, WorkTree(), backend) for _ in range(40)))
        assert all("ran past" in verdict.reason for verdict in verdicts)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 20) == "free"
    finally:
        load_function(f"{__file__}:waits").__globals__["GATE"].set()


async def gives_up(task: Task, work: WorkTree) -> float:
    raise asyncio.CancelledError


async def leaves(task: Task, work: WorkTree) -> float:
    sys.exit("usage: ...")


@pytest.mark.parametrize(("name", "reason"), [("gives_up", "cancelled"), ("leaves", "usage")])
async def test_a_coroutine_that_judges_ends_nothing_but_itself(backend: SandboxBackend, name: str, reason: str) -> None:
    verdict = await PythonVerifier(function=f"{__file__}:{name}").verify(TASK, WorkTree(), backend)
    assert verdict.reward is None and reason in verdict.reason


async def test_a_file_may_hold_what_a_module_may_and_hides_none(backend: SandboxBackend, tmp_path: Path) -> None:
    source = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n"
    (tmp_path / "json.py").write_text(f"{source}def judge(task, work): return A(1).x\n")
    before = sys.modules["json"]
    verifier = PythonVerifier(function=f"{tmp_path / 'json.py'}:judge")
    assert await verifier.verify(TASK, WorkTree(), backend) == Score(reward=1.0)
    assert sys.modules["json"] is before


@pytest.mark.parametrize("source", ["nothing_like_it", "import sys; sys.exit(2)", "def judge(:"])
def test_a_file_that_cannot_be_imported_is_said_beforehand(source: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(TaskError, match="cannot be imported"):
        PythonVerifier(function=f"{tmp_path / 'bad.py'}:judge").check(TASK)


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
