"""How a rollout worker begins: a new run, or one that goes on with what an earlier process left on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from itertools import count
from pathlib import Path
from typing import Protocol

import msgspec

from longrein.errors import CheckpointError
from longrein.rollout.schedule import GroupOutcome, TaskOrder, group_number
from longrein.store import ROLLOUTS, GroupFile, RunStore
from longrein.types import RolloutGroup

LOG = logging.getLogger(__name__)


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What is there before the first group is made."""

    order: TaskOrder
    """It has been told what came of the groups that stay."""
    waiting: tuple[RolloutGroup, ...] = ()
    """Finished groups that no step has taken, in the order in which they finished."""
    settled: frozenset[int] = frozenset()
    """Numbers of the plans that need not be made."""
    lost_groups: int = 0


class Beginning(Protocol):
    """Prepares a run directory for its worker; picklable."""

    def prepare(self, run_dir: Path, fresh_order: Callable[[], TaskOrder]) -> Backlog:
        """Put the directory's rollouts in order.

        Args:
            run_dir: the run directory.
            fresh_order: makes the order that gives each plan its task, with nothing known yet.

        Raises:
            CheckpointError: what is on disk was not made by this run's plans.
            TraceError: a file in it is damaged.
        """
        ...


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing of an earlier run is used, or written over: its rollouts become ``rollouts.1``, ``.2``, ..."""

    def prepare(self, run_dir: Path, fresh_order: Callable[[], TaskOrder]) -> Backlog:
        """See :class:`Beginning`."""
        folder = run_dir / ROLLOUTS
        if any(folder.glob("*.parquet")):
            folder.rename(next(path for n in count(1) if not (path := run_dir / f"{ROLLOUTS}.{n}").exists()))
        return Backlog(order=fresh_order())


class ResumedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Goes on from weights of ``policy_version``, whose steps have taken the groups ``taken``.

    Of the groups on disk, those in ``taken`` are used up. Of the others, a group that was sampled by weights up to
    ``policy_version`` waits for the trainer, whether or not a step that is now undone had taken it. What later weights
    sampled, or a judge never came to, is moved to ``rollouts-lost/``, and its plan is made again.
    """

    policy_version: int
    taken: frozenset[str]

    def prepare(self, run_dir: Path, fresh_order: Callable[[], TaskOrder]) -> Backlog:
        """See :class:`Beginning`."""
        store = RunStore(run_dir)
        files = list(store.files())
        _check_tasks(files, fresh_order(), store.lost())
        untaken = [file for file in files if file.group_id not in self.taken]
        usable = [file for file in untaken if file.scored and file.max_policy_version <= self.policy_version]
        waiting = tuple(file.read() for file in usable)
        lost = [file for file in untaken if file not in usable]
        for file in lost:
            store.lose(file)
        kept = [file for file in files if file not in lost]
        order = _knowing(fresh_order(), kept)
        gone = sorted(self.taken - {file.group_id for file in kept})
        for group_id in gone:
            order.forget(group_number(group_id))
        if gone:
            LOG.warning(
                "%s: %d groups that steps have used up are not there, %s for one; a curriculum goes on without what "
                "came of them", store.folder, len(gone), gone[0],
            )  # fmt: skip
        settled = frozenset(map(group_number, self.taken | {group.group_id for group in waiting}))
        return Backlog(order=order, waiting=waiting, settled=settled, lost_groups=len(lost))


def _knowing(order: TaskOrder, files: Sequence[GroupFile]) -> TaskOrder:
    for file in files:
        outcome = GroupOutcome(task_id=file.task_id, solved=file.solved, judged=file.judged)
        order.note(group_number(file.group_id), outcome)
    return order


def _check_tasks(files: Sequence[GroupFile], order: TaskOrder, lost: Set[str]) -> None:
    """See that each group is of the task that this run gives it.

    An order that goes by outcomes tells the task of a group once it knows what came before; so it is asked group after
    group, before it is told of that group itself. Of groups that are gone, or were once lost and made again, nobody
    knows what later ones went by: those are believed.
    """
    for file in sorted(files, key=lambda file: group_number(file.group_id)):
        number = group_number(file.group_id)
        if order.ready(number):
            _check_task(file, order.task(number).task_id)
        if file.group_id not in lost:
            order.note(number, GroupOutcome(task_id=file.task_id, solved=file.solved, judged=file.judged))


def _check_task(file: GroupFile, planned: str) -> None:
    if planned != file.task_id:
        raise CheckpointError(
            f"{file.path}: group {file.group_id} was made of task {file.task_id}, but in this run it is of {planned}; "
            "tasks, their order, the curriculum and the seed must be those of the run that is resumed"
        )
