"""Rows as TRL's users have them -> tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from longrein.errors import ConfigError, TaskError
from longrein.types import Task

_SHOWN = 5
_TASK_COLUMNS = ("files", "tests", "agent_timeout_s", "verifier_timeout_s")
_FIRST_ROLES = ("system", "developer", "user")


def tasks_from(dataset: Iterable[Task | Mapping[str, Any]]) -> tuple[Task, ...]:
    """Tasks as they are, and rows (also those of a ``datasets.Dataset``) as tasks.

    A row needs ``prompt``: text, or chat messages of system and user, whose texts are joined by empty lines. It may
    have ``task_id`` (else its number is taken) and the columns ``files``, ``tests`` (each path -> content),
    ``agent_timeout_s`` and ``verifier_timeout_s``, as in :class:`~longrein.types.Task`. All other columns become the
    task's metadata, and so reach reward functions. ``None`` is as good as a missing column.

    Raises:
        ConfigError: rows that cannot become tasks, each with its number and what is wrong.
    """
    return _all(dataset, lambda number, row: row if isinstance(row, Task) else _task(number, row))


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


def _task(number: int, row: object) -> Task:
    where = f"dataset row {number}"
    if not isinstance(row, Mapping):
        raise TaskError(f"{where} is of type {type(row).__name__}; give a Task or a mapping with a prompt")
    columns = {key: value for key, value in cast("Mapping[str, Any]", row).items() if value is not None}
    if "prompt" not in columns:
        raise TaskError(f"{where} has no 'prompt'; it has {', '.join(map(repr, sorted(columns))) or 'no columns'}")
    fields: dict[str, Any] = {
        "task_id": str(columns.pop("task_id", number)),
        "prompt": _prompt(where, columns.pop("prompt")),
    }
    for name in _TASK_COLUMNS:
        if name in columns:
            fields[name] = columns.pop(name)
    for name in ("files", "tests"):
        if name in fields:
            fields[name] = _files(where, name, fields[name])
    try:
        task = msgspec.convert({**fields, "metadata": columns}, Task)
        # Rollouts are written down with their task.
        msgspec.msgpack.encode(task)
    except (msgspec.ValidationError, TypeError) as error:
        raise TaskError(f"{where}: {error}") from error
    return task


def _prompt(where: str, prompt: object) -> str:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence) or not prompt:
        raise TaskError(f"{where}: 'prompt' is {prompt!r:.80}; give text or a list of chat messages")
    return "\n\n".join(_text(where, message) for message in cast("Sequence[object]", prompt))


def _text(where: str, message: object) -> str:
    fields: Mapping[str, Any] = cast("Mapping[str, Any]", message if isinstance(message, Mapping) else {})
    role, content = fields.get("role"), fields.get("content")
    if role not in _FIRST_ROLES:
        raise TaskError(
            f"{where}: 'prompt' has a message of role {role!r}; an agent begins its own conversation, so give only "
            f"{', '.join(_FIRST_ROLES)}"
        )
    if not isinstance(content, str):
        raise TaskError(f"{where}: the {role} message of 'prompt' has content {content!r:.80}; give text")
    return content


def _files(where: str, name: str, files: object) -> dict[str, bytes]:
    if not isinstance(files, Mapping):
        raise TaskError(f"{where}: {name!r} is {files!r:.80}; give a mapping of relative path to content")
    found = {path: data for path, data in cast("Mapping[str, Any]", files).items() if data is not None}
    return {path: data.encode() if isinstance(data, str) else data for path, data in found.items()}
