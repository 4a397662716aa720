"""Rows as TRL's users have them -> tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from longrein.errors import ConfigError, TaskError
from longrein.tasks.from_row import task_from_row
from longrein.types import Task

_SHOWN = 5


def tasks_from(dataset: Iterable[Task | Mapping[str, Any]]) -> tuple[Task, ...]:
    """Tasks as they are, and rows (also those of a ``datasets.Dataset``) as tasks.

    A row needs ``prompt``: text, or chat messages of system and user, whose texts are joined by empty lines. It may
    have ``task_id`` (else its number is taken) and the columns ``files``, ``tests`` (each path -> content),
    ``oracle``, ``verdict``, ``agent_timeout_s`` and ``verifier_timeout_s``, as in :class:`~longrein.types.Task`. All
    other columns become the task's metadata, and so reach the session, the verifier and reward functions. ``None`` is
    as good as a missing column.

    Raises:
        ConfigError: rows that cannot become tasks, each with its number and what is wrong.
    """
    return _all(dataset, _task_of)


def _task_of(number: int, row: Task | Mapping[str, Any]) -> Task:
    return row if isinstance(row, Task) else task_from_row(f"dataset row {number}", str(number), row)


def require_tasks(tasks: Sequence[Task], check: Callable[[Task], None]) -> None:
    """Raise :class:`~longrein.errors.ConfigError` naming the tasks that ``check`` refuses."""
    _all(tasks, lambda _number, task: check(task))


def _all(items: Iterable[Any], act: Callable[[int, Any], Any]) -> tuple[Any, ...]:
    results: list[Any] = []
    problems: list[str] = []
    for number, item in enumerate(items):
        try:
            results.append(act(number, item))
        except TaskError as error:
            problems.append(str(error))
    if problems:
        shown = "\n  ".join(problems[:_SHOWN])
        more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ConfigError(f"HarnessRolloutWorker: {len(problems)} tasks of the dataset cannot work:\n  {shown}{more}")
    return tuple(results)
