"""Where a task comes from: file and line."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Literal

from longrein.tasks.families.registry import FAMILIES
from longrein.tasks.harbor import TURN_MARK
from longrein.types import Task

Part = Literal["solution/solve.sh", "tests/test.sh"]


def place_of(task: Task, folder: str, part: Part, line: int) -> str:
    """``file:line`` of a part of a task.

    Args:
        task: of the run.
        folder: of its task directories; empty for the procedural suite, whose tasks are made by a family's code.
        part: which file.
        line: in that file.
    """
    if folder:
        return f"{Path(folder) / task.task_id / part}:{line}"
    family = FAMILIES.get(str(task.metadata.get("family")))
    if family is None:
        return f"{task.task_id}/{part}:{line}"
    source = inspect.getsourcefile(type(family)) or "?"
    return f"{source}:{inspect.getsourcelines(type(family).draw)[1]} (task {task.task_id}, {part})"


def oracle_line(task: Task, command: int, line: int) -> int:
    """Line in ``solve.sh`` of a line of its ``command``-th command, both lines from 1."""
    before = TURN_MARK.join(f"{each}\n" for each in task.oracle[:command])
    return before.count("\n") + (TURN_MARK.count("\n") if command else 0) + line


def reward_line(task: Task) -> int:
    """The first line of ``test.sh`` that speaks of the reward."""
    lines = task.tests.get("test.sh", b"").splitlines()
    return next((at for at, text in enumerate(lines, start=1) if b"reward" in text), 1)
