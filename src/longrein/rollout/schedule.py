"""Which task comes next: the given order, or every epoch a fresh one, the same for the same seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec
import numpy as np

from longrein.types import Task


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One group to make."""

    group_id: str
    task: Task
    seed: int


def group_plans(tasks: Sequence[Task], *, seed: int, shuffle: bool, first: int = 0) -> Iterator[GroupPlan]:
    """Endless plans over ``tasks``, beginning with number ``first``."""
    for number in itertools.count(first):
        epoch, position = divmod(number, len(tasks))
        chosen = _shuffled(len(tasks), seed, epoch)[position] if shuffle else position
        yield GroupPlan(group_id=f"g{number:06d}", task=tasks[chosen], seed=seed + number)


@lru_cache(maxsize=2)
def _shuffled(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(int(index) for index in np.random.default_rng((seed, epoch)).permutation(count))
