"""Plans of groups: each number is a group, made of the task that an order gives it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from typing import Protocol

import msgspec
import numpy as np

from longrein.errors import CheckpointError
from longrein.types import RolloutGroup, Task

_GROUP_ID = re.compile(r"g([0-9]{1,18})")


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One group to make."""

    group_id: str
    task: Task
    seed: int


class GroupOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a finished group, as far as it may decide about later ones."""

    task_id: str
    solved: int
    """Rollouts whose verdict is 1 or more."""
    judged: int
    """Rollouts with a verdict."""


class TaskOrder(Protocol):
    """Which task a number's group is made of. What it has told of a number, it tells for ever."""

    def ready(self, number: int) -> bool:
        """Whether enough is known to tell."""
        ...

    def task(self, number: int) -> Task:
        """The task of a number that is ready."""
        ...

    def note(self, number: int, outcome: GroupOutcome) -> None:
        """A group is finished."""
        ...

    def forget(self, number: int) -> None:
        """A group is finished, but its file was removed: nobody will ever tell what came of it."""
        ...


class Curriculum(Protocol):
    """A rule by which tasks are ordered; picklable."""

    def order(self, tasks: Sequence[Task], seed: int) -> TaskOrder:
        """A fresh order of these tasks."""
        ...


class Uniform(msgspec.Struct, frozen=True, kw_only=True):
    """Every task as often as any other: in the given order, or every epoch in a fresh one."""

    shuffle: bool = True

    def order(self, tasks: Sequence[Task], seed: int) -> UniformOrder:
        """See :class:`Curriculum`."""
        return UniformOrder(tasks=tasks, seed=seed, shuffle=self.shuffle)


class UniformOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`TaskOrder` that nothing changes."""

    tasks: Sequence[Task]
    seed: int
    shuffle: bool

    def ready(self, number: int) -> bool:
        """Always."""
        return True

    def task(self, number: int) -> Task:
        """See :class:`TaskOrder`."""
        epoch, position = divmod(number, len(self.tasks))
        return self.tasks[shuffled(len(self.tasks), (self.seed, epoch))[position] if self.shuffle else position]

    def note(self, number: int, outcome: GroupOutcome) -> None:
        """Nothing depends on it."""

    def forget(self, number: int) -> None:
        """Nothing depends on it."""


class Plans:
    """The plans of an order, from number 0 on, without the numbers that are ``settled``."""

    def __init__(self, order: TaskOrder, seed: int, settled: Set[int] = frozenset()) -> None:
        self._order = order
        self._seed = seed
        self._numbers = itertools.filterfalse(settled.__contains__, itertools.count())
        self._next = next(self._numbers)

    @property
    def ready(self) -> bool:
        """Whether the next plan can be told."""
        return self._order.ready(self._next)

    def __next__(self) -> GroupPlan:
        """The next plan, which must be ready."""
        number, self._next = self._next, next(self._numbers)
        return GroupPlan(group_id=f"g{number:06d}", task=self._order.task(number), seed=self._seed + number)

    def __iter__(self) -> Iterator[GroupPlan]:
        """Plans without an end."""
        return self


def group_number(group_id: str) -> int:
    """The number of a plan's group.

    Raises:
        CheckpointError: no plan gives such an id.
    """
    found = _GROUP_ID.fullmatch(group_id)
    if found is None:
        raise CheckpointError(
            f"group {group_id!r} was not made by a HarnessRolloutWorker; resume with the worker that made it"
        )
    return int(found[1])


def outcome_of(group: RolloutGroup) -> GroupOutcome:
    """What came of a group, by the verifier's verdicts."""
    verdicts = [rollout.score.reward for rollout in group.rollouts if rollout.failure is None]
    judged = [verdict for verdict in verdicts if verdict is not None]
    return GroupOutcome(
        task_id=group.task.task_id, solved=sum(verdict >= 1.0 for verdict in judged), judged=len(judged)
    )


@lru_cache(maxsize=256)
def shuffled(count: int, seeds: tuple[int, ...]) -> tuple[int, ...]:
    """``0 .. count - 1`` in an order that the seeds decide."""
    return tuple(int(index) for index in np.random.default_rng(seeds).permutation(count))
