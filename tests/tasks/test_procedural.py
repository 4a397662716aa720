"""What every family of the coding and shell suites promises: right work scores 1, everything else 0."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest

from longrein.errors import TaskError
from longrein.sandboxes.base import SandboxLimits, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.tasks.families.registry import FAMILIES, SUITES
from longrein.tasks.families.state_test import state_test
from longrein.tasks.suite import ProceduralSuite
from longrein.tasks.verifier import verify
from longrein.types import Score, Task
from tests.tasks.quick_grading import drawn, quickly

REPO = Path(__file__).parents[2]
CODING, SHELL = SUITES["coding"], SUITES["shell"]
LEVELLED = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            any(shutil.which(program) is None for program in FAMILIES[name].needs),
            reason=f"{name} needs {', '.join(FAMILIES[name].needs)}",
        ),
    )
    for name in (*CODING, *SHELL)
]


def test_there_are_ten_of_each() -> None:
    assert len(CODING) >= 10 and len(SHELL) >= 10
    assert all(FAMILIES[name].levels == (1, 2, 3) for name in (*CODING, *SHELL))


@pytest.mark.parametrize("family", LEVELLED)
def test_the_oracle_scores_one_and_all_else_zero(family: str) -> None:
    """A seed a level; fifty seeds are in ``make test-agents``."""
    for level in FAMILIES[family].levels:
        task, draft = drawn(family, level, level)
        assert quickly(task, task.oracle) == 1.0
        assert quickly(task, ()) == 0.0
        assert {name: quickly(task, commands) for name, commands in draft.trivial.items()} == dict.fromkeys(
            draft.trivial, 0.0
        )
        assert len(draft.trivial) >= 3


@pytest.mark.agents
@pytest.mark.parametrize("family", LEVELLED)
def test_fifty_seeds(family: str) -> None:
    """In a process of their own, since each answer is judged in a fork."""
    command = [sys.executable, "-m", "tests.tasks.quick_grading", family, "50"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert report["different"] == 50


async def in_sandboxes(task: Task, commands: tuple[str, ...]) -> Score:
    backend = BubblewrapBackend()
    sandbox = await backend.create(SandboxSpec(files=task.files))
    try:
        for command in commands:
            await sandbox.exec(("bash", "-c", command), timeout_s=30)
        work = await sandbox.collect()
    finally:
        await sandbox.close()
    return await verify(task, work, backend, SandboxLimits())


@pytest.mark.parametrize("family", LEVELLED)
async def test_the_same_in_the_real_sandboxes(family: str) -> None:
    for level in FAMILIES[family].levels:
        task, _draft = drawn(family, level, 10 + level)
        right = await in_sandboxes(task, task.oracle)
        assert right.reward == 1.0, right
        assert right.metrics["passed_fraction"] == 1.0
        nothing = await in_sandboxes(task, ())
        assert nothing.reward == 0.0 and nothing.metrics["passed_fraction"] < 1.0


@pytest.mark.parametrize("family", [*CODING, *SHELL])
def test_nothing_of_the_hidden_test_is_shown(family: str) -> None:
    for task in ProceduralSuite(families=(family,)).tasks("train", 6, 3):
        shown = task.prompt.encode() + b"".join(task.files.values())
        hidden = json.loads(task.tests.get("cases.json", b"{}")).get("calls", [])
        seen = sum(
            json.dumps(call["expected"]).encode() in shown for call in hidden if len(json.dumps(call["expected"])) > 12
        )
        assert seen <= 2, "only what is small may turn up in the examples by chance"
        assert not any(content in shown for name, content in task.tests.items() if name.endswith((".json", ".py")))
        assert task.tests.keys() & task.files.keys() == set()


@pytest.mark.parametrize("family", [*CODING, *SHELL])
def test_the_splits_share_no_secret(family: str) -> None:
    suite = ProceduralSuite(families=(family,))
    train = {(task.prompt, str(task.files)) for task in suite.tasks("train", 40, 1)}
    test = {(task.prompt, str(task.files)) for task in suite.tasks("test", 40, 2)}
    assert not train & test
    assert len(train) == len(test) == 40


def test_families_go_from_level_to_level() -> None:
    tasks = ProceduralSuite(families=("codec", "links", "write_number")).tasks("train", 9, 0)
    assert [(task.metadata["family"], task.metadata["difficulty"]) for task in tasks] == [
        (family, 1 if family == "write_number" else level)
        for level in (1, 2, 3)
        for family in ("codec", "links", "write_number")
    ]
    hard = ProceduralSuite(families=("codec", "write_number"), levels=(3,)).tasks("train", 4, 0)
    assert {(task.metadata["family"], task.metadata["difficulty"]) for task in hard} == {("codec", 3)}


def test_families_that_are_held_out_are_in_the_test_split_alone() -> None:
    suite = ProceduralSuite(families=("shell", "codec"), held_out=("codec", "links"))
    assert {task.metadata["family"] for task in suite.tasks("test", 20, 0)} == {"codec", "links"}
    assert {task.metadata["family"] for task in suite.tasks("train", 40, 0)} == {*SHELL} - {"links"}
    with pytest.raises(TaskError, match="no task family is left for the train split"):
        ProceduralSuite(families=("codec",), held_out=("codec",)).check()
    with pytest.raises(TaskError, match=r"at difficulty \[9\]"):
        ProceduralSuite(levels=(9,)).check()


def test_a_damaged_archive_is_a_wrong_one() -> None:
    """Tar readers raise whatever their decompressor raises."""
    data, packed = b"".join(b"%d\n" % number for number in range(200_000)), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        member = tarfile.TarInfo("a")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    half = len(packed.getvalue()) // 2
    damaged = packed.getvalue()[:half] + b"damage" + packed.getvalue()[half + 6 :]
    check = {"kind": "archive", "path": "x", "members": {"a": hashlib.sha256(data).hexdigest()}}
    task = Task(task_id="x", prompt="p", files={"x": packed.getvalue()}, tests=state_test(check))
    assert quickly(task, ()) == 1.0
    assert quickly(msgspec.structs.replace(task, files={"x": damaged}), ()) == 0.0
