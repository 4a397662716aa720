"""A finished group -> what TRL's trainer takes: one sample a row, with the ids, mask and logprobs as captured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from longrein.errors import BatchError
from longrein.rollout.group import main_path, transcript
from longrein.rollout.schedule import group_number
from longrein.rows import rows_from_rollout
from longrein.train.row_checks import non_finite_problem
from longrein.types import F32, ROLE_WEIGHTS, Message, Role, Rollout, RolloutGroup, Row


class Sample(msgspec.Struct, kw_only=True):
    """One training row; the fields of TRL's ``RolloutSample`` (``trl.experimental.async_grpo``, 1.16.0).

    All arrays have shape ``[n]``.
    """

    prompt: list[Message]
    """What the agent's own conversation began with; only shown."""
    completion: list[Message]
    """What it added, tool results among it; only shown."""
    input_ids: NDArray[np.int64]
    completion_mask: NDArray[np.int64]
    """1 where the token was sampled and trains in this row, else 0; never 0 throughout."""
    old_log_probs: F32
    """The sampler's logprob where the mask is 1; 0 elsewhere."""
    advantage: float
    """Of the rollout inside its group, times the row's weight, since TRL has no weights of rows; finite."""
    model_version: int
    """The oldest that sampled anything trained in the *rollout*: all of its rows are as old as each other."""
    group_id: int
    metrics: dict[str, float]
    """Numbers of the rollout on the first of its rows, and none on the others: TRL averages them over rows."""
    enqueued_at: float | None = None
    """Wall-clock seconds; unknown, for groups wait in the worker's pipe, not here."""


class SampleRule(msgspec.Struct, frozen=True, kw_only=True):
    """How rollouts are cut into rows; see :func:`longrein.rows.rows_from_rollout`."""

    fork_threshold_tokens: int = 0
    role_weights: Mapping[Role, float] = ROLE_WEIGHTS


class GroupSamples(msgspec.Struct, frozen=True, kw_only=True):
    """A group as TRL's trainer sees it."""

    samples: tuple[Sample, ...]
    equal: bool
    """Its scored rollouts have one and the same reward, so no advantage is other than 0."""
    counts: dict[str, float]
    """What was left out, by reason."""


def group_samples(group: RolloutGroup, rule: SampleRule) -> GroupSamples:
    """Samples of the scored rollouts of a group, but for those that have a number that is not finite.

    Raises:
        BatchError: rewards or advantages do not match the rollouts.
        TraceError: a rollout's trace is malformed.
    """
    _check(group)
    scored = [reward for reward in group.rewards if reward is not None]
    counts = {"unscored_rollouts": float(len(group.rollouts) - len(scored)), "unscorable_groups": float(not scored)}
    samples: list[Sample] = []
    for rollout, reward, advantage in zip(group.rollouts, group.rewards, group.advantages, strict=True):
        if rollout.failure is not None:
            _add(counts, f"failed_{rollout.failure.kind}", 1)
        if reward is None:
            continue
        made = rows_from_rollout(
            rollout,
            advantage=advantage,
            fork_threshold_tokens=rule.fork_threshold_tokens,
            role_weights=rule.role_weights,
        )
        for reason, tokens in made.untrained.items():
            _add(counts, f"untrained_tokens_{reason}", tokens)
        if any(non_finite_problem(row) for row in made.rows):
            _add(counts, "non_finite_rows", len(made.rows))
            continue
        samples += _rollout_samples(rollout, made.rows, _numbers(rollout, reward, scored))
    return GroupSamples(samples=tuple(samples), equal=bool(scored) and len(set(scored)) == 1, counts=counts)


def _check(group: RolloutGroup) -> None:
    if not len(group.rollouts) == len(group.rewards) == len(group.advantages):
        raise BatchError(
            f"group {group.group_id}: {len(group.rollouts)} rollouts, {len(group.rewards)} rewards and "
            f"{len(group.advantages)} advantages; a group needs one of each a rollout"
        )


def _rollout_samples(rollout: Rollout, rows: Sequence[Row], numbers: dict[str, float]) -> Iterator[Sample]:
    path = main_path(rollout.trace)
    prompt = list(path[0].messages) if path else []
    completion = transcript(rollout.trace)
    for index, row in enumerate(rows):
        yield Sample(
            prompt=prompt,
            completion=completion,
            input_ids=row.token_ids.astype(np.int64),
            completion_mask=row.loss_mask.astype(np.int64),
            old_log_probs=row.logprobs,
            advantage=row.advantage * row.weight,
            model_version=min(row.min_policy_version for row in rows),
            group_id=group_number(rollout.group_id),
            metrics={} if index else numbers,
        )


def _numbers(rollout: Rollout, reward: float, scored: Sequence[float]) -> dict[str, float]:
    """Under TRL's names."""
    numbers = {"reward": reward, "reward_std": float(np.std(scored))}
    if rollout.score.reward is not None:
        numbers["rewards/harness_reward"] = rollout.score.reward
    return numbers


def _add(counts: dict[str, float], name: str, number: float) -> None:
    counts[name] = counts.get(name, 0.0) + number
