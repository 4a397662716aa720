"""What no task may be, wherever it comes from: it would end a run in the middle, or be judged as another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

import msgspec

from longrein.errors import TaskError
from longrein.types import Task

_SHOWN = 10


def require_sound(task: Task) -> None:
    """Raise :class:`~longrein.errors.TaskError` naming the task, and what :func:`problem_of` says of it."""
    problem = problem_of(task)
    if problem:
        raise TaskError(f"task {task.task_id!r}: {problem}")


def problem_of(task: Task) -> str:
    """What is wrong and what to do; empty for a sound task."""
    if not task.task_id.strip():
        return "its task_id is empty; give it one, or leave the column out"
    if not task.prompt.strip():
        return "its prompt is empty; write what the agent is asked"
    if "\0" in task.prompt:
        return "its prompt holds a NUL character, which no command line can; remove it"
    for name, seconds in (("agent_timeout_s", task.agent_timeout_s), ("verifier_timeout_s", task.verifier_timeout_s)):
        if not 0.0 < seconds < math.inf:
            return f"{name} is {seconds!r}; give a number of seconds above 0"
    return path_problem(task.files) or path_problem(task.tests) or _unwritable(task)


def path_problem(paths: Iterable[str]) -> str:
    """What keeps files from lying in one folder under these relative paths; empty if nothing does."""
    known: dict[tuple[str, ...], str] = {}
    for path in paths:
        place = PurePosixPath(path)
        if not place.parts or place.is_absolute() or ".." in place.parts or "\0" in path:
            return f"file {path!r} leaves its folder; give a path inside it"
        if place.parts in known:
            return f"files {known[place.parts]!r} and {path!r} are the same file; leave one of them out"
        known[place.parts] = path
    for parts, path in known.items():
        above = next((known[parts[:n]] for n in range(1, len(parts)) if parts[:n] in known), None)
        if above is not None:
            return f"file {path!r} lies in {above!r}, which is a file; rename one of them"
    return ""


def check_all(tasks: Iterable[Task], check: Callable[[Task], object]) -> None:
    """Check every task.

    Raises:
        TaskError: naming all that ``check`` refuses, up to ten of them in words.
    """
    problems: dict[str, None] = {}
    for task in tasks:
        try:
            check(task)
        except TaskError as error:
            problems[str(error)] = None
    if len(problems) > 1:
        listed = "\n  ".join([*problems][:_SHOWN])
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise TaskError(f"{len(problems)} problems with the tasks:\n  {listed}{more}")
    if problems:
        raise TaskError(next(iter(problems)))


def require_different(tasks: Iterable[Task]) -> None:
    """Raise :class:`~longrein.errors.TaskError` naming every id that several tasks have."""
    times = Counter(task.task_id for task in tasks)
    again = [repr(task_id) for task_id, number in times.items() if number > 1]
    if again:
        more = f" and {len(again) - _SHOWN} more" if len(again) > _SHOWN else ""
        raise TaskError(f"several tasks have the task_id {', '.join(again[:_SHOWN])}{more}; give each task its own")


def _unwritable(task: Task) -> str:
    """Rollouts are written down with their task."""
    try:
        msgspec.msgpack.encode(task)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return f"it cannot be written down with its rollouts: {error}"
    return ""
