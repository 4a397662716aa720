"""Task sources by kind: what a run file's ``[tasks]`` section becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from longrein.errors import TaskError
from longrein.tasks.base import Split, TaskSource
from longrein.tasks.finite import part_of
from longrein.tasks.from_row import task_from_row
from longrein.tasks.gym import ReasoningGym
from longrein.tasks.harbor import read_tasks
from longrein.tasks.hub import HubDataset
from longrein.tasks.humaneval import HumanEval
from longrein.tasks.jsonl import read_jsonl
from longrein.tasks.problems import deepcoder_task, mbpp_task
from longrein.tasks.suite import ProceduralSuite
from longrein.types import Task

SourceKind = Literal["procedural", "harbor", "jsonl", "dataset", "mbpp", "deepcoder", "humaneval", "reasoning_gym"]
MBPP = "google-research-datasets/mbpp"
DEEPCODER = "agentica-org/DeepCoder-Preview-Dataset"


class TaskChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks: what the keys of ``[tasks]`` say, see ``docs/run-file.md``."""

    kind: SourceKind
    families: tuple[str, ...] = ()
    held_out_families: tuple[str, ...] = ()
    difficulty: tuple[int, ...] = ()
    folder: str = ""
    path: str = ""
    subset: str = ""


class HarborFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of Harbor task directories. Satisfies :class:`~longrein.tasks.base.TaskSource`."""

    folder: str

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """See :func:`~longrein.tasks.finite.part_of`. Raises ``TaskError`` naming every bad file of every bad task."""
        return part_of(read_tasks(Path(self.folder)), split, count, seed)


class JsonlFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with a task a line. Satisfies :class:`~longrein.tasks.base.TaskSource`."""

    path: str

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """See :func:`~longrein.tasks.finite.part_of`. Raises ``TaskError`` naming every bad line."""
        return part_of(read_jsonl(Path(self.path)), split, count, seed)


def task_source(*, kind: SourceKind, families: Sequence[str] = (), folder: str = "") -> TaskSource:
    """A task source by its most used choices, see :func:`chosen_source`."""
    return chosen_source(TaskChoice(kind=kind, families=tuple(families), folder=folder))


def chosen_source(choice: TaskChoice) -> TaskSource:
    """A task source.

    Raises:
        TaskError: an unknown family, no family left for a split, or a source without its folder, path or names.
    """
    return _MAKERS[choice.kind](choice)


def _procedural(choice: TaskChoice) -> TaskSource:
    suite = ProceduralSuite(families=choice.families, held_out=choice.held_out_families, levels=choice.difficulty)
    suite.check()
    return suite


def _harbor(choice: TaskChoice) -> TaskSource:
    if not choice.folder:
        raise TaskError("a harbor task source needs a folder. Set tasks.folder to a folder of task directories.")
    return HarborFolder(folder=choice.folder)


def _jsonl(choice: TaskChoice) -> TaskSource:
    return JsonlFile(path=_path(choice, "a file with a JSON object a line"))


def _dataset(choice: TaskChoice) -> TaskSource:
    return HubDataset(path=_path(choice, "a hub id or a local file"), subset=choice.subset, make=task_from_row)


def _path(choice: TaskChoice, what: str) -> str:
    if not choice.path:
        raise TaskError(f"a {choice.kind} task source needs a path. Set tasks.path to {what}.")
    return choice.path


def _mbpp(choice: TaskChoice) -> TaskSource:
    return HubDataset(path=choice.path or MBPP, subset=choice.subset, make=mbpp_task)


def _deepcoder(choice: TaskChoice) -> TaskSource:
    subset = choice.subset or ("" if choice.path else "primeintellect")
    return HubDataset(path=choice.path or DEEPCODER, subset=subset, make=deepcoder_task)


def _reasoning_gym(choice: TaskChoice) -> TaskSource:
    gym = ReasoningGym(names=choice.families)
    gym.check()
    return gym


_MAKERS: Mapping[SourceKind, Callable[[TaskChoice], TaskSource]] = {
    "procedural": _procedural,
    "harbor": _harbor,
    "jsonl": _jsonl,
    "dataset": _dataset,
    "mbpp": _mbpp,
    "deepcoder": _deepcoder,
    "humaneval": lambda _choice: HumanEval(),
    "reasoning_gym": _reasoning_gym,
}
