"""What is said about the work an agent left."""

from __future__ import annotations

import pytest

from longrein.sandboxes.base import WorkFile, WorkTree
from longrein.sessions.integrity import findings_on, shadows_a_tool
from longrein.types import Task


def found(work: WorkTree, **files: bytes) -> dict[str, str]:
    task = Task(task_id="t", prompt="p", files={name.replace("__", "."): data for name, data in files.items()})
    return {finding.kind: finding.detail for finding in findings_on(task, work, "/workdir")}


def holding(*paths: str) -> WorkTree:
    return WorkTree(files={path: WorkFile(data=b"x") for path in paths})


def test_honest_work_has_no_findings() -> None:
    work = holding("solution.py", "src/app.py", "tests/test_app.py", "data/python.csv", "README.md", "json/data.txt")
    assert found(work) == {}


@pytest.mark.parametrize(
    "path",
    [
        *("conftest.py", "deep/er/conftest.py", "sitecustomize.py", "x.pth", "venv/lib/evil.pth", "pytest.ini"),
        *(
            "unittest.py",
            "unittest/__init__.py",
            "pytest.py",
            "json.py",
            "math.so",
            "python3",
            "bin/git",
            ".local/bin/sh",
        ),
    ],
)
def test_what_the_tests_could_take_for_their_tools_is_named(path: str) -> None:
    assert shadows_a_tool(path)
    assert found(holding("solution.py", path)) == {"test_shadowing": path}


@pytest.mark.parametrize("path", ["jsonlines.py", "src/json.py", "tests/data/bash", "pytest.txt", "git.md", "a.pthx"])
def test_what_they_could_not_is_not(path: str) -> None:
    assert not shadows_a_tool(path)


def test_the_tasks_own_files_are_nobodys_finding_unless_changed() -> None:
    assert found(holding("conftest.py"), conftest__py=b"x") == {}
    assert found(holding("conftest.py"), conftest__py=b"y") == {"test_shadowing": "conftest.py"}


def test_links_that_lead_outside_and_special_files_are_named() -> None:
    work = WorkTree(
        files={"a": WorkFile(data=b"")},
        symlinks={"out": "/etc/passwd", "in": "a", "conftest.py": "a"},
        special=tuple(f"pipe{number}" for number in range(12)),
    )
    assert found(work) == {
        "outside_symlink": "out -> /etc/passwd",
        "special_file": ", ".join(f"pipe{number}" for number in range(10)) + " and 2 more",
        "test_shadowing": "conftest.py",
    }


def test_a_task_that_ships_a_repository_is_named() -> None:
    task = Task(task_id="t", prompt="p", files={".git/HEAD": b"", "sub/.git/packed-refs": b"", "gitx/a": b""})
    (finding,) = findings_on(task, WorkTree(), "/workdir")
    assert (finding.kind, finding.detail) == ("git_history", ".git/HEAD, sub/.git/packed-refs")


def test_where_a_link_leads_need_be_no_text() -> None:
    """``ln -s $(printf '/etc/\\377') link``: what no rollout file can hold would end the run of whoever trains it."""
    work = WorkTree(symlinks={"link": "/etc/\udcff"})
    assert found(work) == {"outside_symlink": "link -> /etc/?"}
