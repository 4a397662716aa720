"""Groups from the rollout worker -> the rows of one step, with everything that was left out counted."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np

from longrein.errors import BatchError
from longrein.rows import rows_from_rollout
from longrein.train.batch import fresh_rows
from longrein.train.step_metrics import StepMetrics
from longrein.train.step_trainer import StepRows
from longrein.train.worker_protocol import RolloutWorker
from longrein.types import Role, Rollout, RolloutGroup, Row

HEALTH_INTERVAL_S = 1.0


class CollectRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a step is made of."""

    groups_per_step: int
    max_staleness: int
    fork_threshold_tokens: int
    roles_trained: frozenset[Role]


class GroupRows(msgspec.Struct, frozen=True, kw_only=True):
    """A group as the step sees it."""

    rows: tuple[Row, ...]
    """Within the staleness bound."""
    rewards: tuple[float, ...]
    """Of its scored rollouts."""
    usable: bool
    """It counts as one of the step's groups."""
    sampled_tokens: int
    """Of all its rollouts and roles."""
    metrics: dict[str, float]


class StepCollector:
    """Endless steps. Each takes groups until enough of them can be trained on.

    A group whose rewards are all ``None`` is skipped and replaced, and so is one whose rows are all too stale; a
    group of equal rewards counts, although it teaches nothing. Nothing is taken ahead of the step that needs it.
    """

    def __init__(self, worker: RolloutWorker, rule: CollectRule, policy_version: Callable[[], int]) -> None:
        self._worker = worker
        self._rule = rule
        self._policy_version = policy_version
        self._checked_s = 0.0
        self._collected_s = 0.0

    def __iter__(self) -> Iterator[StepRows]:
        self._collected_s = time.perf_counter()
        while True:
            yield self._collect()

    def _collect(self) -> StepRows:
        started_s = time.perf_counter()
        version = self._policy_version()
        taken: list[GroupRows] = []
        metrics = StepMetrics()
        while sum(group.usable for group in taken) < self._rule.groups_per_step:
            group = group_rows(self._next_group(), self._rule, version)
            taken.append(group)
            metrics.add(group.metrics)
        now_s = time.perf_counter()
        sampled = sum(group.sampled_tokens for group in taken)
        metrics.add({"wait_s": now_s - started_s, "sampled_tokens_per_s": sampled / (now_s - self._collected_s)})
        self._collected_s = now_s
        for numbers in self._worker_metrics():
            metrics.add(numbers)
        used = [group for group in taken if group.usable]
        rows = tuple(row for group in used for row in group.rows)
        metrics.add(_rewards([reward for group in used for reward in group.rewards]))
        metrics.add(_versions(rows, version))
        return StepRows(rows=rows, metrics=metrics.take())

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
    for rollout, reward, advantage in zip(group.rollouts, group.rewards, group.advantages, strict=True):
        if rollout.failure is not None:
            counts.add({f"count/failed_{rollout.failure.kind}": 1.0})
        counts.add({"count/retries": rollout.metrics.get("retries", 0.0)})
        if rollout.trace.sampled_tokens:
            counts.add({"delivered_token_fraction": rollout.trace.delivered_token_fraction})
        if reward is None:
            continue
        rewards.append(reward)
        made = rows_from_rollout(
            rollout,
            advantage=advantage,
            fork_threshold_tokens=rule.fork_threshold_tokens,
            roles_trained=rule.roles_trained,
        )
        rows += made.rows
        counts.add({f"count/untrained_tokens_{reason}": tokens for reason, tokens in made.untrained.items()})
        counts.add({"count/realigned_calls": made.realigned_calls, "count/completions_over_swap": _over_swap(rollout)})
    fresh = fresh_rows(rows, policy_version=policy_version, max_staleness=rule.max_staleness)
    stale = bool(rows) and not fresh.rows
    counts.add(
        {
            "count/unscored_rollouts": len(group.rollouts) - len(rewards),
            "count/unscorable_groups": float(not rewards),
            "count/stale_groups": float(stale),
            "count/stale_rows": fresh.stale_rows,
            "count/equal_reward_groups": float(len(rewards) > 0 and len(set(rewards)) == 1),
        }
    )
    return GroupRows(
        rows=fresh.rows,
        rewards=tuple(rewards),
        usable=bool(rewards) and not stale,
        sampled_tokens=sum(rollout.trace.sampled_tokens for rollout in group.rollouts),
        metrics=counts.take(),
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
