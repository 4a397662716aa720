"""A curriculum by recent pass rate: tasks that are sometimes solved come more often.

Tasks that are alike in some keys of their metadata (their family and difficulty) make up a cell. A cell whose recent
pass rate is ``p`` has the weight ``p^2t * (1 - p)^2(1 - t)``, which is largest at the target ``t``; for ``t = 0.5`` it
is ``p * (1 - p)``, the variance of success: *sampling for learnability* (Rutherford et al., arXiv 2408.15099; for
language models Foster et al., arXiv 2502.12272). A share of groups is drawn from all cells alike, so that none is
forgotten.

Groups finish in any order, and runs are killed. So that neither changes which task comes next, a group is chosen by
what came of the groups at least ``lag_groups`` before it, by number, and waits for them. The state is a function of the
finished groups on disk: nothing else is kept.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np

from longrein.errors import CheckpointError, ConfigError
from longrein.rollout.schedule import GroupOutcome, shuffled
from longrein.tasks.kinds import kind_of
from longrein.types import Task

_PRIOR_ROLLOUTS = 2.0
"""A cell of which nothing is known counts as so many rollouts at the target."""
_DRAW = 1
_EPOCH = 2


class PassRateCurriculum(msgspec.Struct, frozen=True, kw_only=True):
    """Satisfies :class:`~longrein.rollout.schedule.Curriculum`; its fields are those of ``[tasks.curriculum]``.

    Raises:
        ConfigError: a value that cannot work.
    """

    target: float = 0.5
    window: int = 64
    explore: float = 0.2
    lag_groups: int = 16
    by: tuple[str, ...] = ("family", "difficulty")
    shuffle: bool = True
    """A cell's tasks come in a fresh order every time it was gone through; otherwise in the given one."""

    def __post_init__(self) -> None:
        wrong = {
            f"target={self.target!r} must lie between 0 and 1": not 0 < self.target < 1,
            f"window={self.window!r} must be at least 1": not self.window >= 1,
            f"explore={self.explore!r} must lie above 0 and be at most 1": not 0 < self.explore <= 1,
            f"lag_groups={self.lag_groups!r} must be at least 1: a group cannot wait for itself": self.lag_groups < 1,
            f"by={self.by!r} must be a tuple of keys": isinstance(cast("object", self.by), str),
        }
        problems = [problem for problem, is_there in wrong.items() if is_there]
        if problems:
            raise ConfigError(f"PassRateCurriculum: {'; '.join(problems)}")

    def order(self, tasks: Sequence[Task], seed: int) -> PassRateOrder:
        """See :class:`~longrein.rollout.schedule.Curriculum`.

        Raises:
            ConfigError: two tasks have one id, so that what came of them could not be told apart; or no task has any
                of the keys ``by``, so that all were one cell.
        """
        again = [task_id for task_id, times in Counter(task.task_id for task in tasks).items() if times > 1]
        if again:
            raise ConfigError(
                f"PassRateCurriculum: {len(again)} ids are of several tasks, {again[0]!r} for one; give each its own"
            )
        if self.by and not any(key in task.metadata for task in tasks for key in self.by):
            raise ConfigError(
                f"PassRateCurriculum: no task has {' or '.join(self.by)} in its metadata, so none could come more "
                "often than others; name keys that they have in by"
            )
        return PassRateOrder(tasks, seed, self)


class PassRateOrder:
    """A :class:`~longrein.rollout.schedule.TaskOrder`, which is asked for numbers in rising order."""

    def __init__(self, tasks: Sequence[Task], seed: int, rule: PassRateCurriculum) -> None:
        self._tasks = tasks
        self._seed = seed
        self._rule = rule
        self._places = {task.task_id: place for place, task in enumerate(tasks)}
        names = [kind_of(task.metadata, rule.by) for task in tasks]
        cells: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            cells.setdefault(name, []).append(place)
        self._cells = [*cells.values()]
        self._cell_of = {place: cell for cell, places in enumerate(self._cells) for place in places}
        self._recent = [deque[bool](maxlen=rule.window) for _ in self._cells]
        self._used = [0] * len(self._cells)
        self._chosen: list[int] = []
        self._known: dict[int, GroupOutcome] = {}
        self._forgotten: set[int] = set()
        self._unknown = 0
        """The lowest number of which nothing is known."""
        self._counted = 0
        """Outcomes below this number are in ``_recent``."""

    def ready(self, number: int) -> bool:
        """See :class:`~longrein.rollout.schedule.TaskOrder`."""
        return number in self._known or self._unknown > number - self._rule.lag_groups

    def note(self, number: int, outcome: GroupOutcome) -> None:
        """See :class:`~longrein.rollout.schedule.TaskOrder`.

        Raises:
            CheckpointError: the group is of a task that is not of this run.
        """
        if outcome.task_id not in self._places:
            raise CheckpointError(
                f"group g{number:06d} was made of task {outcome.task_id}, which this run does not have; tasks must be "
                "those of the run that is resumed"
            )
        self._known[number] = outcome
        self._advance()

    def forget(self, number: int) -> None:
        """See :class:`~longrein.rollout.schedule.TaskOrder`. Other groups are chosen as if it had no verdict."""
        self._forgotten.add(number)
        self._advance()

    def _advance(self) -> None:
        while self._unknown in self._known or self._unknown in self._forgotten:
            self._unknown += 1

    def task(self, number: int) -> Task:
        """See :class:`~longrein.rollout.schedule.TaskOrder`."""
        while len(self._chosen) <= number:
            place = self._choose(len(self._chosen))
            self._chosen.append(place)
            self._used[self._cell_of[place]] += 1
        return self._tasks[self._chosen[number]]

    def _choose(self, number: int) -> int:
        if number in self._known:
            # What was made is what was chosen, whatever has been lost since.
            return self._places[self._known[number].task_id]
        self._count(number - self._rule.lag_groups)
        point = float(np.random.default_rng((self._seed, _DRAW, number)).random())
        cell = _drawn(self._shares(), point)
        places = self._cells[cell]
        epoch, position = divmod(self._used[cell], len(places))
        if self._rule.shuffle:
            position = shuffled(len(places), (self._seed, _EPOCH, cell, epoch))[position]
        return places[position]

    def _count(self, last: int) -> None:
        """Take the outcomes up to a number into account, in the order of numbers."""
        while self._counted <= last:
            outcome = self._known.get(self._counted)
            if outcome is not None:
                verdicts = [True] * outcome.solved + [False] * (outcome.judged - outcome.solved)
                self._recent[self._cell_of[self._places[outcome.task_id]]].extend(verdicts)
            self._counted += 1

    def _shares(self) -> list[float]:
        """The probability of each cell."""
        weights = [self._weight(recent) for recent in self._recent]
        total, even = sum(weights), 1.0 / len(weights)
        explore = self._rule.explore
        return [explore * even + (1.0 - explore) * weight / total for weight in weights]

    def _weight(self, recent: deque[bool]) -> float:
        target = self._rule.target
        rate = (sum(recent) + _PRIOR_ROLLOUTS * target) / (len(recent) + _PRIOR_ROLLOUTS)
        return float(rate ** (2 * target) * (1.0 - rate) ** (2 * (1.0 - target)))


def _drawn(shares: Sequence[float], point: float) -> int:
    """The cell in whose share of [0, 1) a point lies."""
    for cell, share in enumerate(shares[:-1]):
        if point < share:
            return cell
        point -= share
    return len(shares) - 1
