"""What an agent left in its work directory that a reader of its reward should know. Findings, not verdicts."""

from __future__ import annotations

import sys
from pathlib import PurePosixPath

from longrein.sandboxes.base import WorkTree
from longrein.sandboxes.links import without_outside_links
from longrein.types import Finding, FindingKind, Task

_MOST_NAMED = 10
_READ_BY_TEST_TOOLS = {
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("sitecustomize.py", "usercustomize.py", "pyvenv.cfg", ".coveragerc", "noxfile.py", ".npmrc", ".gdbinit"),
}
"""Files that test tools and interpreters read unasked, wherever they lie."""
_TOOLS = {"pytest", "_pytest", "pluggy", "sh", "bash", "git", "node", "npm", "python", "python3", "make", "env", "diff"}
_MODULE_NAMES = sys.stdlib_module_names | {"pytest", "_pytest", "pluggy", "numpy", "hypothesis"}


def findings_on(task: Task, work: WorkTree, workdir: str) -> tuple[Finding, ...]:
    """What is found on the work an agent left.

    Args:
        task: what it had been given: the task's own unchanged files are nobody's finding.
        work: what it left.
        workdir: absolute path at which the work will be judged.
    """
    kept = without_outside_links(work, workdir).symlinks
    made = sorted(path for path, file in work.files.items() if task.files.get(path) != file.data)
    found: dict[FindingKind, list[str]] = {
        "outside_symlink": [f"{path} -> {work.symlinks[path]}" for path in sorted(work.symlinks.keys() - kept.keys())],
        "special_file": list(work.special),
        "test_shadowing": [path for path in (*made, *sorted(kept)) if shadows_a_tool(path)],
        "git_history": sorted(path for path in task.files if ".git" in PurePosixPath(path).parts),
    }
    return tuple(Finding(kind=kind, detail=_named(paths)) for kind, paths in found.items() if paths)


def shadows_a_tool(path: str) -> bool:
    """Whether tests that run in the work directory could take this file for one of their tools.

    Args:
        path: relative to the work directory.
    """
    name = PurePosixPath(path)
    if name.name in _READ_BY_TEST_TOOLS or name.suffix == ".pth":
        return True
    top = PurePosixPath(name.parts[0])
    is_module = len(name.parts) > 1 or top.suffix in (".py", ".so", ".pyc")
    if is_module and top.name.partition(".")[0] in _MODULE_NAMES and _is_code(name):
        return True
    # A tool by name: at the top, or in a folder that somebody may have on the PATH.
    return name.name in _TOOLS and (len(name.parts) == 1 or "bin" in name.parts[:-1])


def _is_code(name: PurePosixPath) -> bool:
    return name.suffix in (".py", ".so", ".pyc")


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    # Where a link leads may be no UTF-8, which no rollout file can hold.
    return (", ".join(paths[:_MOST_NAMED]) + more).encode(errors="replace").decode()
