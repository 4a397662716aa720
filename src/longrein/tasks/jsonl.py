"""Tasks as JSON lines, one task a line: read whole, every bad line named; and written so that they read back equal."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from longrein.errors import TaskError
from longrein.tasks.from_row import BASE64, TASK_COLUMNS, task_from_row
from longrein.tasks.sound import check_all, require_different
from longrein.types import Task


def read_jsonl(path: Path) -> tuple[Task, ...]:
    """Every task of a file, in order. Empty lines are skipped; a line without ``task_id`` is called by its number.

    Raises:
        TaskError: naming the file and every bad line with its problem.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error}. Give a file with a JSON object a line.") from error
    tasks: list[Task] = []
    problems: list[str] = []
    lines_of: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = _task(f"{path}:{number}", str(number), line)
        except TaskError as error:
            problems.append(str(error))
            continue
        tasks.append(task)
        first = lines_of.setdefault(task.task_id, number)
        if first != number:
            problems.append(
                f"{path}:{number}: task_id {task.task_id!r} comes twice, in line {first} too; give each task its own"
            )
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise TaskError(f"{path}: {len(problems)} problem(s) in the file of tasks:\n{listed}")
    if not tasks:
        raise TaskError(f"{path}: holds no tasks. Write one JSON object with a prompt a line.")
    return tuple(tasks)


def write_jsonl(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks; :func:`read_jsonl` gives the same back.

    Raises:
        TaskError: the file exists, or tasks cannot be said in this format, all named before anything is written.
    """
    if path.exists():
        raise TaskError(f"{path}: exists already. Export into a new file.")
    lines: list[bytes] = []
    listed = [*tasks]
    check_all(listed, lambda task: lines.append(_line(task)))
    require_different(listed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines))


def _task(where: str, task_id: str, line: bytes) -> Task:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: bad JSON: {error}") from error
    return task_from_row(where, task_id, row)


def _line(task: Task) -> bytes:
    taken = {"task_id", "prompt", *TASK_COLUMNS}
    lost = sorted(key for key, value in task.metadata.items() if key in taken or value is None)
    if lost:
        raise TaskError(f"task {task.task_id!r}: metadata {lost} would not be read back from JSON lines. Rename them.")
    row: dict[str, Any] = {
        "task_id": task.task_id,
        "prompt": task.prompt,
        "files": _texts(task.files),
        "tests": _texts(task.tests),
        "oracle": task.oracle,
        "verdict": task.verdict,
        "agent_timeout_s": task.agent_timeout_s,
        "verifier_timeout_s": task.verifier_timeout_s,
        **task.metadata,
    }
    try:
        line = msgspec.json.encode(row) + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"task {task.task_id!r}: metadata has no form in JSON: {error}") from error
    _require_same(task, _task(f"task {task.task_id!r}", "", line))
    return line


def _require_same(task: Task, read: Task) -> None:
    """JSON has no NaN, no times and no bytes: they would come back as something else."""
    if read == task:
        return
    metadata = [f"metadata {key!r}" for key, value in task.metadata.items() if read.metadata.get(key) != value]
    fields = [name for name in TASK_COLUMNS if getattr(task, name) != getattr(read, name)]
    raise TaskError(
        f"task {task.task_id!r}: {', '.join([*fields, *metadata])} would be read back from JSON lines as something "
        "else. Make plain text, numbers, lists and tables of it."
    )


def _texts(files: Mapping[str, bytes]) -> dict[str, Any]:
    return {path: _text(data) for path, data in files.items()}


def _text(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(data).decode()}
