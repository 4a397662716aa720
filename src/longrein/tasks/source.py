"""Task sources by kind: what a run file's ``[tasks]`` section becomes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from longrein.errors import TaskError
from longrein.tasks.base import Split, TaskSource
from longrein.tasks.families.registry import families_named
from longrein.tasks.harbor import read_tasks
from longrein.tasks.suite import ProceduralSuite
from longrein.types import Task

SourceKind = Literal["procedural", "harbor"]
_TEST_SHARE = 5
"""One Harbor task in this many is held out."""


class HarborFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of Harbor task directories. Satisfies :class:`~longrein.tasks.base.TaskSource`.

    A fifth of the tasks (at least one of two) is the test split, chosen by a hash of the task ids: the same
    folder always splits alike, whatever the seed.
    """

    folder: str

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        """At most ``count`` tasks of a split (a folder holds only so many), in an order drawn from ``seed``.

        Raises:
            TaskError: naming every bad file of every bad task.
        """
        ranked = sorted(read_tasks(Path(self.folder)), key=lambda task: hashlib.sha256(task.task_id.encode()).digest())
        held_out = max(1, len(ranked) // _TEST_SHARE) if len(ranked) > 1 else 0
        members = ranked[:held_out] if split == "test" else ranked[held_out:]
        random.Random(seed).shuffle(members)
        return members[:count]


def task_source(*, kind: SourceKind, families: Sequence[str] = (), folder: str = "") -> TaskSource:
    """A task source.

    Raises:
        TaskError: an unknown family; a Harbor source without a folder.
    """
    if kind == "procedural":
        families_named(families)
        return ProceduralSuite(families=tuple(families))
    if not folder:
        raise TaskError("a harbor task source needs a folder. Set tasks.folder to a folder of task directories.")
    return HarborFolder(folder=folder)
