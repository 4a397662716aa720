"""A row with a ``prompt`` -> a task: the form in which data sets and JSON lines hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from longrein.errors import TaskError
from longrein.tasks.sound import problem_of
from longrein.types import Task

TASK_COLUMNS = ("files", "tests", "oracle", "verdict", "agent_timeout_s", "verifier_timeout_s")
"""Columns, beside ``task_id`` and ``prompt``, that become the task's own fields. All others become metadata."""
FIRST_ROLES = ("system", "developer", "user")
BASE64 = "base64"
"""The one key of a mapping that stands for bytes which are no text."""


def task_from_row(where: str, task_id: str, row: object) -> Task:
    """One row as a task.

    Args:
        where: begins every message, as in ``dataset row 3``.
        task_id: for rows without one.
        row: ``prompt`` is text, or chat messages of system and user, whose texts are joined by empty lines. ``None``
            is as good as a missing column. Files are text, bytes, or ``{"base64": text}``.

    Raises:
        TaskError: it cannot become a task.
    """
    if not isinstance(row, Mapping):
        raise TaskError(f"{where} is of type {type(row).__name__}; give a Task or a mapping with a prompt")
    columns = {key: value for key, value in cast("Mapping[str, Any]", row).items() if value is not None}
    if "prompt" not in columns:
        raise TaskError(f"{where} has no 'prompt'; it has {', '.join(sorted(map(repr, columns))) or 'no columns'}")
    fields: dict[str, Any] = {
        "task_id": _task_id(where, columns.pop("task_id", task_id)),
        "prompt": _prompt(where, columns.pop("prompt")),
    }
    for name in TASK_COLUMNS:
        if name in columns:
            fields[name] = columns.pop(name)
    for name in ("files", "tests"):
        if name in fields:
            fields[name] = _files(where, name, fields[name])
    try:
        task = msgspec.convert({**fields, "metadata": columns}, Task)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TaskError(f"{where}: {error}") from error
    problem = problem_of(task)
    if problem:
        raise TaskError(f"{where}: {problem}")
    return task


def _task_id(where: str, task_id: object) -> str:
    if isinstance(task_id, bool) or not isinstance(task_id, str | int | float):
        raise TaskError(f"{where}: 'task_id' is of type {type(task_id).__name__}; give text or a number")
    return str(task_id)


def _prompt(where: str, prompt: object) -> str:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes) or not prompt:
        raise TaskError(f"{where}: 'prompt' is {prompt!r:.80}; give text or a list of chat messages")
    return "\n\n".join(_text(where, message) for message in cast("Sequence[object]", prompt))


def _text(where: str, message: object) -> str:
    fields: Mapping[str, Any] = cast("Mapping[str, Any]", message if isinstance(message, Mapping) else {})
    role, content = fields.get("role"), fields.get("content")
    if role not in FIRST_ROLES:
        raise TaskError(
            f"{where}: 'prompt' has a message of role {role!r}; an agent begins its own conversation, so give only "
            f"{', '.join(FIRST_ROLES)}"
        )
    if not isinstance(content, str):
        raise TaskError(f"{where}: the {role} message of 'prompt' has content {content!r:.80}; give text")
    return content


def _files(where: str, name: str, files: object) -> dict[str, Any]:
    if not isinstance(files, Mapping):
        raise TaskError(f"{where}: {name!r} is {files!r:.80}; give a mapping of relative path to content")
    found = {path: data for path, data in cast("Mapping[str, Any]", files).items() if data is not None}
    return {path: _content(f"{where}: file {path!r} of {name!r}", data) for path, data in found.items()}


def _content(where: str, data: Any) -> Any:
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise TaskError(f"{where} is no text that UTF-8 can hold: {error}") from error
    if not isinstance(data, Mapping):
        return data
    fields = cast("Mapping[str, Any]", data)
    # msgspec reads base64 where bytes are wanted.
    return fields[BASE64] if set(fields) == {BASE64} else fields
