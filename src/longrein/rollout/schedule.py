"""Which task comes next: every epoch a fresh seeded order, the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from longrein.types import Task


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One group to make."""

    group_id: str
    task: Task
    seed: int


def group_plans(tasks: Sequence[Task], seed: int, first: int = 0) -> Iterator[GroupPlan]:
    """Endless plans over ``tasks``, beginning with number ``first``."""
    number = first
    while True:
        epoch, position = divmod(number, len(tasks))
        order = np.random.default_rng((seed, epoch)).permutation(len(tasks))
        yield GroupPlan(group_id=f"g{number:06d}", task=tasks[int(order[position])], seed=seed + number)
        number += 1
