"""Held-out judgement: mean reward, pass@k, and intervals over tasks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean, stdev

import msgspec

from longrein.errors import ConfigError
from longrein.rollout.attempt import Attempt
from longrein.rollout.runtime import RolloutRuntime
from longrein.rollout.together import together
from longrein.tasks.kinds import kind_of
from longrein.types import Rollout, Task

Z_95 = NormalDist().inv_cdf(0.975)


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with its 95 % confidence interval over ``tasks`` tasks."""

    mean: float
    low: float
    high: float
    tasks: int

    @property
    def above_zero(self) -> bool:
        """The whole interval lies above 0."""
        return self.low > 0

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}] over {self.tasks} tasks"


class EvalReport(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of ``samples`` rollouts on each task. Unscorable rollouts are counted, never zero."""

    task_ids: tuple[str, ...]
    rewards: tuple[tuple[float | None, ...], ...]
    """One tuple a task, one entry a rollout."""
    reward: Interval
    pass_at: dict[int, float]
    unscorable: int
    statuses: dict[str, int]
    pass_rates: dict[str, float] = {}
    """By family and difficulty, as in ``codec/2``: solved of the judged rollouts."""


async def evaluate(
    runtime: RolloutRuntime,
    tasks: Sequence[Task],
    *,
    samples: int,
    pass_at: Sequence[int],
    max_inflight: int,
    label: str = "eval",
    on_rollout: Callable[[Rollout], None] = lambda _rollout: None,
) -> EvalReport:
    """Run ``samples`` rollouts on every task, ``max_inflight`` at once.

    Raises:
        ConfigError: no tasks, or ``k > samples`` for a pass@k.
        LongreinError: whatever the first failing rollout raised; the others are cancelled.
    """
    if not tasks:
        raise ConfigError("evaluate: no tasks; set tasks.eval_count to at least 1")
    if any(k > samples for k in pass_at):
        raise ConfigError(f"evaluate: pass@{max(pass_at)} needs at least {max(pass_at)} samples a task, not {samples}")
    slots = asyncio.Semaphore(max_inflight)

    async def one(number: int, task: Task, sample: int) -> Rollout:
        group_id = f"{label}-{number:05d}"
        attempt = Attempt(
            rollout_id=f"{group_id}-{sample}", group_id=group_id, task=task, seed=sample, group_seed=number
        )
        async with slots:
            rollout = await runtime.driver.run(attempt)
        on_rollout(rollout)
        return rollout

    rollouts = await together(one(n, task, s) for n, task in enumerate(tasks) for s in range(samples))
    by_task = [rollouts[i * samples : (i + 1) * samples] for i in range(len(tasks))]
    found = report([task.task_id for task in tasks], by_task, pass_at)
    kinds = [kind_of(task.metadata) for task in tasks]
    return msgspec.structs.replace(found, pass_rates=pass_rates(kinds, found.rewards))


def pass_rates(kinds: Sequence[str], rewards: Sequence[Sequence[float | None]]) -> dict[str, float]:
    """Solved (reward of 1 or more) of the judged rollouts of each kind of task; without those that have no kind."""
    judged: dict[str, list[bool]] = {}
    for kind, task in zip(kinds, rewards, strict=True):
        if kind:
            judged.setdefault(kind, []).extend(reward >= 1.0 for reward in task if reward is not None)
    return {kind: fmean(solved) for kind, solved in judged.items() if solved}


def report(task_ids: Sequence[str], by_task: Sequence[Sequence[Rollout]], pass_at: Sequence[int]) -> EvalReport:
    """Sum up finished rollouts, one sequence a task."""
    rewards = tuple(tuple(rollout.score.reward for rollout in rollouts) for rollouts in by_task)
    statuses: dict[str, int] = {}
    for rollouts in by_task:
        for rollout in rollouts:
            statuses[rollout.status] = statuses.get(rollout.status, 0) + 1
    return EvalReport(
        task_ids=tuple(task_ids),
        rewards=rewards,
        reward=mean_interval([mean for mean in map(_mean, rewards) if mean is not None]),
        pass_at={k: _pass_at(rewards, k) for k in pass_at},
        unscorable=sum(reward is None for task in rewards for reward in task),
        statuses=statuses,
    )


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean of one value a task, with a 95 % normal interval.

    Rewards in [0, 1] get two imaginary tasks of 0 and two of 1 in the interval (Agresti and Coull, 1998), so that
    0 of 96 does not claim certainty.
    """
    if not values:
        return Interval(mean=math.nan, low=-math.inf, high=math.inf, tasks=0)
    bounded = all(0 <= value <= 1 for value in values)
    padded = [*values, 0.0, 0.0, 1.0, 1.0] if bounded else list(values)
    half = Z_95 * stdev(padded) / math.sqrt(len(padded)) if len(padded) > 1 else math.inf
    centre, mean = fmean(padded), fmean(values)
    low, high = min(mean, centre - half), max(mean, centre + half)
    if bounded:
        low, high = max(low, 0.0), min(high, 1.0)
    return Interval(mean=mean, low=low, high=high, tasks=len(values))


def paired_difference(after: EvalReport, before: EvalReport) -> Interval:
    """``after - before`` on the tasks that both could score, paired by task, 95 % normal interval.

    Raises:
        ConfigError: the reports are of different tasks.
    """
    if after.task_ids != before.task_ids:
        raise ConfigError("paired_difference: the two reports are of different tasks; evaluate both on the same ones")
    pairs = [(_mean(new), _mean(old)) for new, old in zip(after.rewards, before.rewards, strict=True)]
    differences = [new - old for new, old in pairs if new is not None and old is not None]
    if len(differences) < 2:
        return Interval(mean=math.nan, low=-math.inf, high=math.inf, tasks=len(differences))
    half = Z_95 * stdev(differences) / math.sqrt(len(differences))
    mean = fmean(differences)
    return Interval(mean=mean, low=mean - half, high=mean + half, tasks=len(differences))


def _mean(rewards: Sequence[float | None]) -> float | None:
    scored = [reward for reward in rewards if reward is not None]
    return fmean(scored) if scored else None


def _pass_at(rewards: Sequence[Sequence[float | None]], k: int) -> float:
    """Unbiased pass@k (Chen et al., arXiv 2107.03374), a reward of 1 or more counting as solved."""
    values: list[float] = []
    for task in rewards:
        scored = [reward for reward in task if reward is not None]
        if len(scored) < k:
            continue
        failed = sum(reward < 1.0 for reward in scored)
        values.append(1.0 - math.comb(failed, k) / math.comb(len(scored), k))
    return fmean(values) if values else math.nan
