"""Groups from the rollout worker -> the rows of one step, with everything that was left out counted."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np

from longrein.errors import BatchError
from longrein.rows import rows_from_rollout
from longrein.train.batch import finite_rows, fresh_rows
from longrein.train.loss_choices import EqualGroups
from longrein.train.normalise import StepScale
from longrein.train.step_metrics import StepMetrics
from longrein.train.step_trainer import StepRows
from longrein.train.worker_protocol import RolloutWorker
from longrein.types import Role, Rollout, RolloutGroup, Row

HEALTH_INTERVAL_S = 1.0
REPLACED_PER_GROUP = 10
"""Groups of equal rewards that a step replaces for each group that it needs; beyond, they count."""


class CollectRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a step is made of."""

    groups_per_step: int
    max_staleness: int
    fork_threshold_tokens: int
    role_weights: Mapping[Role, float]
    scale: StepScale
    equal_groups: EqualGroups
    """What a group of equal rewards is to its step.

    ``drop``: one of its groups, without rows and in no denominator. ``count``: its tokens count in every denominator
    and teach nothing. ``replace``: left out, and another one is taken (DAPO's dynamic sampling, arXiv 2503.14476).
    """


class GroupRows(msgspec.Struct, frozen=True, kw_only=True):
    """A group as the step sees it."""

    rows: tuple[Row, ...]
    """Of rollouts within the staleness bound."""
    rewards: tuple[float, ...]
    """Of its scored rollouts."""
    advantages: tuple[float, ...]
    """Of its scored rollouts, but for those that are not finite; none of a group that is dropped."""
    usable: bool
    """It can count as one of the step's groups."""
    equal: bool
    """Its scored rollouts have one and the same reward."""
    dropped: bool
    """It has no rows, since it is equal and the rule is ``drop``."""
    lost: bool
    """It has no rows, since those that it had are of rollouts whose numbers are not finite; and is not dropped."""
    sampled_tokens: int
    """Of all its rollouts and roles."""
    delivered_fractions: tuple[float, ...]
    """Of its rollouts that sampled anything."""
    metrics: dict[str, float]


class StepCollector:
    """Endless steps. Each takes groups until enough of them can be trained on.

    A group whose rewards are all ``None`` is skipped and replaced, and so is one whose rows are all too stale; what
    becomes of a group of equal rewards is the rule's. Nothing is taken ahead of the step that needs it.
    """

    def __init__(self, worker: RolloutWorker, rule: CollectRule, policy_version: Callable[[], int]) -> None:
        self._worker = worker
        self._rule = rule
        self._policy_version = policy_version
        self._checked_s = 0.0
        self._collected_s = 0.0
        self.taken: list[str] = []
        """Ids of the groups that steps have used up, trained on or dropped. The one that is collected now counts."""

    def __iter__(self) -> Iterator[StepRows]:
        self._collected_s = time.perf_counter()
        while True:
            yield self._collect()

    def _collect(self) -> StepRows:
        started_s = time.perf_counter()
        version = self._policy_version()
        taken: list[GroupRows] = []
        metrics = StepMetrics()
        while len(used := self._used(taken)) < self._rule.groups_per_step:
            group = self._next_group()
            self.taken.append(group.group_id)
            taken.append(group_rows(group, self._rule, version))
            metrics.add(taken[-1].metrics)
            for fraction in taken[-1].delivered_fractions:
                metrics.add({"delivered_token_fraction": fraction})
        now_s = time.perf_counter()
        sampled = sum(group.sampled_tokens for group in taken)
        metrics.add({"wait_s": now_s - started_s, "sampled_tokens_per_s": sampled / (now_s - self._collected_s)})
        self._collected_s = now_s
        for numbers in self._worker_metrics():
            metrics.add(numbers)
        rows = self._rows(used)
        metrics.add(_rewards([reward for group in used for reward in group.rewards]))
        metrics.add({"count/replaced_groups": sum(group.usable for group in taken) - len(used)})
        metrics.add(_versions(rows, version))
        numbers = metrics.take()
        _refuse_lost_step(used, version + 1, numbers["count/non_finite_rows"])
        return StepRows(rows=rows, metrics=numbers, policy_version=version)

    def _used(self, taken: list[GroupRows]) -> list[GroupRows]:
        """Groups that make up the step, of those taken for it."""
        usable = [group for group in taken if group.usable]
        if self._rule.equal_groups != "replace":
            return usable
        different = [group for group in usable if not group.equal]
        equal = [group for group in usable if group.equal]
        wanted = self._rule.groups_per_step
        return different if len(equal) < REPLACED_PER_GROUP * wanted else (different + equal)[:wanted]

    def _rows(self, used: list[GroupRows]) -> tuple[Row, ...]:
        factor = self._rule.scale.factor([advantage for group in used for advantage in group.advantages])
        return tuple(
            msgspec.structs.replace(row, advantage=row.advantage * factor) for group in used for row in group.rows
        )

    def _next_group(self) -> RolloutGroup:
        while True:
            if time.monotonic() - self._checked_s >= HEALTH_INTERVAL_S:
                self._worker.check_health()
                self._checked_s = time.monotonic()
            try:
                return self._worker.rollout_buffer.get(timeout=HEALTH_INTERVAL_S)
            except queue.Empty:
                continue

    def _worker_metrics(self) -> Iterator[Mapping[str, float]]:
        while True:
            try:
                yield self._worker.metrics_queue.get_nowait()
            except queue.Empty:
                return


def group_rows(group: RolloutGroup, rule: CollectRule, policy_version: int) -> GroupRows:
    """Rows of the scored rollouts of one group that are fresh enough to train now.

    Raises:
        BatchError: rewards or advantages do not match the rollouts.
        TraceError: a rollout's trace is malformed.
    """
    if not len(group.rollouts) == len(group.rewards) == len(group.advantages):
        raise BatchError(
            f"group {group.group_id}: {len(group.rollouts)} rollouts, {len(group.rewards)} rewards and "
            f"{len(group.advantages)} advantages; a group needs one of each a rollout"
        )
    counts = StepMetrics()
    rows: list[Row] = []
    rewards: list[float] = []
    advantages: list[float] = []
    for rollout, reward, advantage in zip(group.rollouts, group.rewards, group.advantages, strict=True):
        if rollout.failure is not None:
            counts.add({f"count/failed_{rollout.failure.kind}": 1.0})
        counts.add({"count/retries": rollout.metrics.get("retries", 0.0)})
        for kind in {finding.kind for finding in rollout.findings}:
            counts.add({f"count/finding_{kind}": 1.0})
        if reward is None:
            continue
        rewards.append(reward)
        advantages.append(advantage)
        made = rows_from_rollout(
            rollout,
            advantage=advantage,
            fork_threshold_tokens=rule.fork_threshold_tokens,
            role_weights=rule.role_weights,
        )
        rows += made.rows
        counts.add({f"count/untrained_tokens_{reason}": tokens for reason, tokens in made.untrained.items()})
        counts.add({"count/realigned_calls": made.realigned_calls, "count/completions_over_swap": _over_swap(rollout)})
    finite = finite_rows(rows)
    fresh = fresh_rows(finite.rows, policy_version=policy_version, max_staleness=rule.max_staleness)
    stale = bool(finite.rows) and not fresh.rows
    equal = len(rewards) > 0 and len(set(rewards)) == 1
    dropped = equal and rule.equal_groups == "drop"
    counts.add(
        {
            "count/unscored_rollouts": len(group.rollouts) - len(rewards),
            "count/unscorable_groups": float(not rewards),
            "count/stale_groups": float(stale),
            "count/stale_rows": fresh.stale_rows,
            "count/non_finite_rows": finite.non_finite_rows,
            "count/equal_reward_groups": float(equal),
        }
    )
    return GroupRows(
        rows=() if dropped else fresh.rows,
        rewards=tuple(rewards),
        advantages=() if dropped else tuple(advantage for advantage in advantages if math.isfinite(advantage)),
        usable=bool(rewards) and not stale,
        equal=equal,
        dropped=dropped,
        lost=not dropped and finite.non_finite_rows > 0 and not finite.rows,
        sampled_tokens=sum(rollout.trace.sampled_tokens for rollout in group.rollouts),
        delivered_fractions=tuple(
            rollout.trace.delivered_token_fraction for rollout in group.rollouts if rollout.trace.sampled_tokens
        ),
        metrics=counts.take(),
    )


def _refuse_lost_step(used: list[GroupRows], step: int, non_finite_rows: float) -> None:
    """Where numbers that are not finite take every group that could have trained, they will take the next ones too."""
    kept = [group for group in used if not group.dropped]
    if kept and all(group.lost for group in kept):
        raise BatchError(
            f"step {step}: no row is left to train; {non_finite_rows:.0f} were left out, since a sampler logprob or "
            "advantage is not finite; look at the engine's precision and the rewards"
        )


def _over_swap(rollout: Rollout) -> int:
    """Completions during which the engine changed weights."""
    completions = [call.completion for call in rollout.trace.calls]
    return sum(completion.min_policy_version < completion.max_policy_version for completion in completions)


def _rewards(rewards: list[float]) -> dict[str, float]:
    return {"reward": float(np.mean(rewards)), "reward_std": float(np.std(rewards))}


def _versions(rows: tuple[Row, ...], policy_version: int) -> dict[str, float]:
    metrics: dict[str, float] = {"policy_version_max": policy_version, "rows": len(rows)}
    if rows:
        staleness = [policy_version - row.min_policy_version for row in rows]
        mixed = [row.min_policy_version < row.max_policy_version for row in rows]
        metrics |= {
            "staleness_mean": float(np.mean(staleness)),
            "staleness_max": max(staleness),
            "mixed_version_fraction": float(np.mean(mixed)),
        }
    return metrics
