"""Rows through ``datasets.load_dataset``: of the hub, or of a local file with the same columns."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from longrein.errors import TaskError
from longrein.tasks.base import Split
from longrein.tasks.finite import drawn_of, part_of
from longrein.types import Task

Row = Mapping[str, Any]
_BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
"""Ending of a local file -> the builder of ``datasets`` that reads it."""
_SHOWN = 10


class _Datasets(Protocol):
    def load_dataset(self, path: str, name: str | None = None, **options: Any) -> Mapping[str, Iterable[Row]]: ...


class HubDataset(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks made of the rows of a data set. Satisfies :class:`~longrein.tasks.base.TaskSource`.

    A data set with a ``test`` split keeps its splits, and without a ``train`` split it has no train tasks: what was
    published as a test is never trained on. Otherwise a fifth of ``train`` is held out by a hash.
    """

    path: str
    """A hub id, a local file (``.jsonl``, ``.json``, ``.parquet``, ``.csv``), or a folder that ``datasets`` reads."""
    subset: str = ""
    make: Callable[[str, str, Row], Task]
    """``(where, name, row)`` -> task, or ``TaskError``. The name is for rows without an id of their own."""

    def tasks(self, split: Split, count: int, seed: int) -> list[Task]:
        """At most ``count`` tasks of a split, in an order drawn from ``seed``.

        Raises:
            TaskError: ``datasets`` is not installed, cannot read it, or rows that cannot become tasks.
        """
        loaded = load(self.path, self.subset)
        if "test" in loaded:
            return list(drawn_of(self._all(loaded, split), count, seed)) if split in loaded else []
        name = "train" if "train" in loaded else next(iter(loaded))
        return list(part_of(self._all(loaded, name), split, count, seed))

    def _all(self, loaded: Mapping[str, Iterable[Row]], name: str) -> list[Task]:
        tasks: list[Task] = []
        problems: list[str] = []
        rows_of: dict[str, int] = {}
        for number, row in enumerate(loaded[name]):
            where = f"{self.path}, {name} row {number}"
            try:
                task = self.make(where, f"test-{number}" if name == "test" else str(number), row)
            except TaskError as error:
                problems.append(str(error))
                continue
            tasks.append(task)
            first = rows_of.setdefault(task.task_id, number)
            if first != number:
                # One of them could be held out, and the other trained on.
                problems.append(f"{where}: row {first} has the task_id {task.task_id!r}, too; give each its own")
        if problems:
            listed = "\n  ".join(problems[:_SHOWN])
            more = f"\n  and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise TaskError(f"{self.path}: {len(problems)} rows cannot become tasks:\n  {listed}{more}")
        return tasks


def load(path: str, subset: str) -> Mapping[str, Iterable[Row]]:
    """Split -> rows.

    Raises:
        TaskError: ``datasets`` is not installed, or cannot read it.
    """
    try:
        datasets = cast("_Datasets", importlib.import_module("datasets"))
        theirs = cast("type[Exception]", importlib.import_module("datasets.exceptions").DatasetsError)
    except ImportError as error:
        raise TaskError("data sets need the package datasets: pip install 'longrein[datasets]'") from error
    builder = _BUILDERS.get(Path(path).suffix)
    try:
        if builder is not None:
            return datasets.load_dataset(builder, data_files=path)
        return datasets.load_dataset(path, subset or None)
    except (OSError, ValueError, RuntimeError, StopIteration, theirs) as error:
        raise TaskError(
            f"{path}{f' ({subset})' if subset else ''}: datasets cannot load it: {_words(error)}. "
            "Give a hub id that can be reached from here, or a local file that has rows."
        ) from error


def _words(error: BaseException) -> str:
    """What went wrong, and what made it: by itself their error for a bad file says nothing of it."""
    said = f"{type(error).__name__}: {error}".strip(": ")
    return f"{said}: {error.__cause__}" if error.__cause__ is not None else said
