"""Splits of sources that hold only so many tasks."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from longrein.tasks.base import Split
from longrein.types import Task

_TEST_SHARE = 5
"""One task in this many is held out."""


def part_of(tasks: Sequence[Task], split: Split, count: int, seed: int) -> Sequence[Task]:
    """At most ``count`` tasks of a split, in an order drawn from ``seed``.

    A fifth of the tasks (at least one of two) is the test split, chosen by a hash of the task ids: the same tasks
    always split alike, whatever the seed.
    """
    ranked = sorted(tasks, key=lambda task: hashlib.sha256(task.task_id.encode()).digest())
    held_out = max(1, len(ranked) // _TEST_SHARE) if len(ranked) > 1 else 0
    return drawn_of(ranked[:held_out] if split == "test" else ranked[held_out:], count, seed)


def drawn_of(tasks: Sequence[Task], count: int, seed: int) -> Sequence[Task]:
    """At most ``count`` of the tasks, in an order drawn from ``seed``."""
    shuffled = list(tasks)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:count]
