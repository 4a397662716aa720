"""Verdicts by exit code and by JUnit report."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from longrein.sandboxes.base import SandboxBackend
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.tasks.junit import LARGEST_BYTES, JUnitError, count_cases
from longrein.types import Score
from tests.tasks.test_verifier import LOGS, judged_by, score


@pytest.fixture
def backend(tmp_path: Path) -> SandboxBackend:
    return BubblewrapBackend(root=str(tmp_path / "sandboxes"))


@pytest.mark.parametrize(("code", "reward"), [(0, 1.0), (1, 0.0), (2, None), (127, None)])
async def test_an_exit_code_may_be_the_verdict(backend: SandboxBackend, code: int, reward: float | None) -> None:
    task = msgspec.structs.replace(judged_by(f"echo said; exit {code}"), verdict="exit_code")
    verdict = await score(backend, task)
    assert verdict.reward == reward
    assert reward is not None or f"exit code {code}" in verdict.reason


REPORT = """<?xml version="1.0"?><testsuites><testsuite name="s" tests="5">
<testcase name="a"/><testcase name="b"><failure message="no">x</failure></testcase>
<testcase name="c"><error/></testcase><testcase name="d"><skipped/></testcase>
<testcase name="e"><system-out/></testcase>
</testsuite></testsuites>"""


async def test_a_junit_report_may_be_the_verdict(backend: SandboxBackend) -> None:
    script = f'cp "${{SANDBOX_ROOT:-}}/tests/report.xml" {LOGS}junit.xml"; exit 1'
    task = msgspec.structs.replace(judged_by(script, **{"report.xml": REPORT.encode()}), verdict="junit")
    assert await score(backend, task) == Score(reward=0.5, metrics={"passed": 2.0, "failed": 2.0, "skipped": 1.0})
    missing = await score(backend, msgspec.structs.replace(judged_by("exit 3"), verdict="junit"))
    assert missing.reward is None and "wrote no junit.xml (exit code 3)" in missing.reason


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "no element found"),
        (b"<testsuite><testcase></testsuite>", "mismatched tag"),
        (b"<html/>", "its root is 'html'"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><testsuite><testcase name="&a;"/></testsuite>', "document type"),
        ('<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE x><testsuite/>'.encode("utf-16"), "document type"),
        (b"<testsuite>" * 200, "nested more than"),
        (b" " * (LARGEST_BYTES + 1), "bytes, more than"),
        (b'<?xml version="1.0" encoding="none-such"?><testsuite/>', "unknown encoding"),
    ],
)
def test_what_is_no_junit_report_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(JUnitError, match=problem):
        count_cases(data)
