"""Look up the solution in the history of a repository that came with the task."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from longrein.sandboxes.base import SandboxBackend, SandboxSpec, WorkTree
from longrein.sessions.integrity import findings_on
from longrein.tasks.source import task_source
from longrein.types import Task

LOOK = ("sh", "-c", "git -c safe.directory=* log -p --all | grep -c s3cret-solution")


@pytest.fixture
def repository(tmp_path: Path) -> dict[str, bytes]:
    """A task whose author removed the solution in the last commit."""
    if shutil.which("git") is None:
        pytest.skip("no git on this machine")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    for text in ("s3cret-solution", "to be done"):
        (tmp_path / "code.py").write_text(text)
        subprocess.run([*git, "add", "code.py"], check=True)
        subprocess.run([*git, "commit", "-qm", text], check=True)
    files = (path for path in tmp_path.rglob("*") if path.is_file() and "hooks" not in path.parts)
    return {str(path.relative_to(tmp_path)): path.read_bytes() for path in files}


async def test_it_works_and_is_said(walled: SandboxBackend, repository: dict[str, bytes]) -> None:
    """No wall helps against what the task itself brings."""
    sandbox = await walled.create(SandboxSpec(files=repository))
    found = await sandbox.exec(LOOK, timeout_s=20)
    await sandbox.close()
    if found.exit_code == 127:
        pytest.skip("git is not below /usr here")
    assert int(found.stdout) >= 1, found.stderr
    findings = findings_on(Task(task_id="t", prompt="p", files=repository), WorkTree(), "/workdir")
    assert [finding.kind for finding in findings] == ["git_history"]


def test_our_own_suites_bring_one_only_where_git_is_the_task() -> None:
    """There the history is what is asked about, and the family's own tests see that doing nothing is worth nothing."""
    source = task_source(kind="procedural")
    for task in (*source.tasks("train", 200, 0), *source.tasks("test", 50, 0)):
        found = [finding.kind for finding in findings_on(task, WorkTree(), "/workdir")]
        assert found == (["git_history"] if task.task_id.startswith("git_") else []), task.task_id
