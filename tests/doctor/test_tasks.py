"""The check of tasks names each broken one with file and line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from longrein.doctor.check import examine
from longrein.doctor.result import CheckResult
from longrein.doctor.tasks import Tasks
from longrein.sandboxes.base import SandboxLimits
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.tasks.harbor import TURN_MARK, read_tasks
from longrein.tasks.suite import ProceduralSuite
from longrein.tasks.verifier import SandboxedTests

SOLVED = '#!/bin/sh\nif [ -f done.txt ]; then echo 1; else echo 0; fi > "${SANDBOX_ROOT:-}/logs/verifier/reward.txt"\n'


def write(folder: Path, name: str, *, solve: str = "touch done.txt\n", test: str = SOLVED, toml: str = "") -> None:
    files = {"task.toml": toml, "instruction.md": "Make done.txt.\n", "tests/test.sh": test, "solution/solve.sh": solve}
    for path, text in files.items():
        target = folder / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


async def examined(folder: Path) -> CheckResult:
    check = Tasks(lambda: read_tasks(folder), str(folder), BubblewrapBackend, SandboxLimits(), SandboxedTests())
    return await examine(check, 300)


async def test_good_tasks_pass(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, f"t{number}")
    finding = await examined(tmp_path)
    assert (finding.status, finding.seen) == ("pass", "3 of 3 tasks: oracle 1, nothing 0")


async def test_the_procedural_suite_passes() -> None:
    tasks = ProceduralSuite().tasks("train", 12, 0)
    finding = await examine(Tasks(lambda: tasks, "", BubblewrapBackend, SandboxLimits(), SandboxedTests()), 300)
    assert (finding.status, finding.seen) == ("pass", "8 of 12 tasks: oracle 1, nothing 0")


async def test_an_oracle_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, "good")
    write(tmp_path, "bad", solve="set -u\necho one\ncp nowhere.txt done.txt\n")
    write(tmp_path, "late", solve=f"echo one\n{TURN_MARK}echo two\ncp nothing.txt done.txt\n")
    finding = await examined(tmp_path)
    assert finding.status == "fail", finding
    assert f"{tmp_path}/bad/solution/solve.sh:3: the oracle gets 0 (cp: cannot stat 'nowhere.txt'" in finding.seen
    assert f"{tmp_path}/late/solution/solve.sh:4: the oracle gets 0 (cp: cannot stat 'nothing.txt'" in finding.seen
    assert "good" not in finding.seen


async def test_a_task_that_is_solved_already_is_named(tmp_path: Path) -> None:
    write(tmp_path, "free", test='#!/bin/sh\n\necho 1 > "${SANDBOX_ROOT:-}/logs/verifier/reward.txt"\n')
    finding = await examined(tmp_path)
    assert finding.status == "fail"
    assert finding.seen == f"{tmp_path}/free/tests/test.sh:3: doing nothing gets 1"


async def test_a_verifier_that_says_nothing_is_named(tmp_path: Path) -> None:
    write(tmp_path, "mute", test="#!/bin/sh\nexit 0\n")
    finding = await examined(tmp_path)
    assert finding.status == "fail"
    assert "mute/tests/test.sh:1: unscorable: the verifier wrote no reward" in finding.seen


async def test_a_bad_file_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, "bad", toml="[agent]\ntimeout_sec = = 3\n")
    finding = await examined(tmp_path)
    assert finding.status == "fail"
    assert f"{tmp_path}/bad/task.toml" in finding.seen
    assert "line 2" in finding.seen


async def test_a_task_without_an_oracle_cannot_be_told(tmp_path: Path) -> None:
    write(tmp_path, "open", solve="")
    (tmp_path / "open/solution/solve.sh").unlink()
    finding = await examined(tmp_path)
    assert finding.status == "cannot tell"
    assert "1 of 1 tasks have no oracle, open say" in finding.seen


@pytest.mark.parametrize("name", ["write_number", "rename_file"])
async def test_a_broken_family_is_named_with_its_code(name: str) -> None:

    tasks = [
        msgspec.structs.replace(task, oracle=("true",))
        for task in ProceduralSuite(families=(name,)).tasks("train", 1, 0)
    ]
    finding = await examine(Tasks(lambda: tasks, "", BubblewrapBackend, SandboxLimits(), SandboxedTests()), 300)
    assert finding.status == "fail"
    assert f"/{name}.py:" in finding.seen
