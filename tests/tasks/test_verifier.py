"""The judge: what counts as a verdict, and what makes a rollout unscorable."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from longrein.errors import SandboxError, TaskError
from longrein.sandboxes.base import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec, WorkFile, WorkTree
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.local import SubprocessBackend
from longrein.tasks.verifier import SandboxedTests, check_task, verify
from longrein.types import Score, Task
from tests.sandboxes.sticky import Sticky

pytestmark = pytest.mark.filterwarnings("ignore:sandboxes are plain subprocesses:RuntimeWarning")
LOGS = '"${SANDBOX_ROOT:-}/logs/verifier/'


@pytest.fixture(params=[BubblewrapBackend, SubprocessBackend])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxBackend:
    made: SandboxBackend = request.param(root=str(tmp_path / "sandboxes"))
    return made


def judged_by(script: str, timeout_s: float = 20.0, **tests: bytes) -> Task:
    return Task(task_id="t", prompt="p", tests={"test.sh": script.encode(), **tests}, verifier_timeout_s=timeout_s)


async def score(backend: SandboxBackend, task: Task, work: WorkTree | None = None) -> Score:
    return await verify(task, work or WorkTree(), backend, SandboxLimits())


async def test_the_tests_see_the_work_and_their_own_files(backend: SandboxBackend) -> None:
    work = WorkTree(
        files={
            "src/answer.txt": WorkFile(data=b"42"),
            "run.sh": WorkFile(data=b"#!/bin/sh\necho 42\n", executable=True),
        },
        symlinks={"link": "src/answer.txt"},
        folders=("src", "empty"),
    )
    script = f"""
    expected=$(cat "${{SANDBOX_ROOT:-}}/tests/expected")
    test "$(cat src/answer.txt)" = "$expected" && test "$(./run.sh)" = "$expected" \\
        && test "$(cat link)" = "$expected" && test -d empty && echo 1.0 > {LOGS}reward.txt"
    """
    assert await score(backend, judged_by(script, expected=b"42"), work) == Score(reward=1.0)


async def test_json_brings_metrics(backend: SandboxBackend) -> None:
    script = f"""echo '{{"reward": 0.25, "passed": 3, "note": "x", "all": true}}' > {LOGS}reward.json" """
    assert await score(backend, judged_by(script)) == Score(reward=0.25, metrics={"passed": 3.0, "all": 1.0})


async def test_the_reward_file_decides_not_the_exit_code(backend: SandboxBackend) -> None:
    assert await score(backend, judged_by(f'echo 0 > {LOGS}reward.txt"; exit 1')) == Score(reward=0.0)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo trouble >&2; exit 7", "exit code 7.*trouble"),
        ("true", "wrote no reward"),
        (f'echo nan > {LOGS}reward.txt"', "not a finite number"),
        (f'echo inf > {LOGS}reward.txt"', "not a finite number"),
        (f'echo many > {LOGS}reward.txt"', "no number"),
        (f'echo "[1]" > {LOGS}reward.json"', "cannot be read"),
        (f"""echo '{{"score": 1}}' > {LOGS}reward.json" """, "no number 'reward'"),
        (f"""printf '{{"reward": %0400d}}' 1 | tr 0 9 > {LOGS}reward.json" """, "not a finite number"),
        (
            f"""(printf '{{"reward": 1, "deep": '; printf '%099999d' 0 | tr 0 '[') > {LOGS}reward.json" """,
            "cannot be read",
        ),
        (f"""printf '{{"reward": 1, "x": "\\377"}}' > {LOGS}reward.json" """, "cannot be read"),
        (f'echo 1 > {LOGS}reward.txt"; kill -SEGV $$', "signal 11"),
        (f'ln -s /etc/hostname {LOGS}reward.txt"', "wrote no reward"),
    ],
)
async def test_no_verdict_is_never_zero(backend: SandboxBackend, script: str, reason: str) -> None:
    verdict = await score(backend, judged_by(script))
    assert verdict.reward is None
    assert re.search(reason, verdict.reason, re.DOTALL), verdict.reason


async def test_a_verifier_that_hangs(backend: SandboxBackend) -> None:
    verdict = await score(backend, judged_by(f'echo 1 > {LOGS}reward.txt"; sleep 60', timeout_s=0.3))
    assert verdict.reward is None
    assert "0.3 s" in verdict.reason


async def test_a_metric_too_large_for_a_float_is_dropped(backend: SandboxBackend) -> None:
    script = f"""printf '{{"reward": 1, "big": %0400d}}' 1 | tr 0 9 > {LOGS}reward.json" """
    assert await score(backend, judged_by(script)) == Score(reward=1.0)


async def test_a_task_without_tests_is_an_error(backend: SandboxBackend) -> None:
    with pytest.raises(TaskError, match=r"tests/test\.sh"):
        await score(backend, Task(task_id="t", prompt="p"))


def test_tasks_can_be_checked_beforehand() -> None:
    check_task(judged_by("true"))
    with pytest.raises(TaskError, match=r"tests/test\.sh"):
        check_task(Task(task_id="t", prompt="p"))
    for path in ("../x", "/etc/x", "a/../../x", ""):
        with pytest.raises(TaskError, match="leaves its folder"):
            check_task(Task(task_id="t", prompt="p", files={path: b""}, tests={"test.sh": b""}))


CAT = f'if [ "$(cat code.txt)" = 729 ]; then echo 1; else echo 0; fi > {LOGS}reward.txt"'


async def test_work_over_the_limits_is_worth_nothing_and_says_so(backend: SandboxBackend) -> None:
    """Never unscorable: an agent could choose not to be judged."""
    work = WorkTree(left_out=("big.bin",))
    verdict = await score(backend, judged_by(CAT), work)
    assert verdict.reward == 0.0 and "work left out: big.bin" in verdict.findings[0].detail
    many = WorkTree(left_out=tuple(f"f{number}" for number in range(30)))
    assert "f4 and 25 more" in (await score(backend, judged_by(CAT), many)).findings[0].detail


@pytest.mark.parametrize(
    ("make", "reward"),
    [
        ("truncate -s 100M code.txt", 0.0),
        ("seq 500 | xargs touch; echo 729 > zcode.txt", 0.0),
        ("mkfifo code.txt", 0.0),
        ("ln -s /dev/zero code.txt", 0.0),
        ("mkdir a; ln -s ../../../../dev a/dev; ln -s a/dev/zero code.txt", 0.0),
        ("echo 729 > number; ln -s number code.txt", 1.0),
    ],
)
async def test_what_an_agent_leaves_can_neither_hang_the_judge_nor_hide(
    backend: SandboxBackend, make: str, reward: float
) -> None:
    sandbox = await backend.create(SandboxSpec(limits=SandboxLimits(collect_bytes=1 << 20, collect_entries=100)))
    assert (await sandbox.exec(("bash", "-c", make), timeout_s=20)).exit_code == 0
    work = await sandbox.collect()
    await sandbox.close()
    verdict = await score(backend, judged_by(CAT, timeout_s=60.0), work)
    assert verdict.reward == reward, verdict.reason


async def test_a_folder_that_cannot_be_removed_costs_no_verdict(
    backend: SandboxBackend, caplog: pytest.LogCaptureFixture
) -> None:
    sticky = Sticky(backend)
    assert await score(sticky, judged_by(f'echo 1 > {LOGS}reward.txt"')) == Score(reward=1.0)
    assert sticky.created == 1 and "could not be removed" in caplog.text


class Flaky:
    """A backend that fails at first, as a busy machine does."""

    def __init__(self, backend: SandboxBackend, failures: int) -> None:
        self.backend = backend
        self.failures = failures
        self.tries = 0

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.tries += 1
        if self.tries <= self.failures:
            raise SandboxError("no space on this machine")
        return await self.backend.create(spec)


async def test_a_sandbox_that_does_not_start_is_tried_again(backend: SandboxBackend) -> None:
    task = judged_by(f'echo 1 > {LOGS}reward.txt"')
    flaky = Flaky(backend, failures=2)
    assert await score(flaky, task) == Score(reward=1.0)
    broken = Flaky(backend, failures=99)
    verdict = await score(broken, task)
    assert verdict.reward is None
    assert "no space on this machine" in verdict.reason
    assert broken.tries == 3


async def test_nothing_is_left(backend: SandboxBackend, tmp_path: Path) -> None:
    await score(backend, judged_by("(setsid sleep 60 &)"))
    assert list((tmp_path / "sandboxes").iterdir()) == []


async def test_the_hidden_test_is_told_the_tasks_other_columns(backend: SandboxBackend) -> None:
    script = f'grep -q \'"answer":42\' "${{SANDBOX_ROOT:-}}/tests/task.json" && echo 1 > {LOGS}reward.txt"'
    task = msgspec.structs.replace(judged_by(script), metadata={"answer": 42})
    assert await score(backend, task) == Score(reward=1.0)
    mine = msgspec.structs.replace(judged_by(script, **{"task.json": b'{"answer":41}'}), metadata={"answer": 42})
    assert (await score(backend, mine)).reward is None, "a file of the task's own is not replaced"


class Noted:
    """A backend that keeps what it was asked for."""

    def __init__(self, backend: SandboxBackend) -> None:
        self.backend = backend
        self.limits: list[SandboxLimits] = []

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.limits.append(spec.limits)
        return await self.backend.create(spec)


async def test_the_verifier_has_limits_of_its_own(backend: SandboxBackend) -> None:
    noted, limits = Noted(backend), SandboxLimits(memory_bytes=300 << 20, pids=33)
    verifier = SandboxedTests(limits=limits)
    verifier.check(judged_by("true"))
    assert await verifier.verify(judged_by(f'echo 1 > {LOGS}reward.txt"'), WorkTree(), noted) == Score(reward=1.0)
    assert noted.limits == [limits]


async def test_tests_that_filled_the_disk_are_worth_zero_and_say_so() -> None:
    """Code under test could otherwise choose not to be judged."""
    flood = "while :; do head -c 1000000 /dev/zero >> /tmp/full; done"
    small = SandboxedTests(limits=SandboxLimits(disk_bytes=32 << 20))
    score = await small.verify(judged_by(flood), WorkTree(), BubblewrapBackend())
    assert score.reward == 0.0
    assert [finding.kind for finding in score.findings] == ["disk_limit"]
