"""Rewards of a finished group, and the advantages among its members."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from longrein.errors import ConfigError
from longrein.rollout.advantage import advantages
from longrein.types import AdvantageName, Call, Message, Rollout, RolloutGroup, Task, Trace
from longrein.views import Outcome

RewardFunc = Callable[..., Sequence[float | None]]
"""TRL's form: ``f(prompts=..., completions=..., **columns) -> one float or None a rollout``."""
RolloutRewardFn = Callable[[Outcome], float | None]
LARGEST_REWARD = 3.4e38
"""About the largest float32. NaN is not below it either."""


def harness_reward(outcome: Outcome) -> float | None:
    """The default ``rollout_reward_fn``: the verifier's own verdict."""
    return outcome.score.reward


class RewardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a rollout's reward is made.

    ``reward = rollout_reward_fn(outcome) + sum of reward_funcs``; a function that returns ``None`` for a rollout adds
    nothing to it. A rollout that cannot be scored (``score.reward is None`` or an infrastructure failure) has reward
    ``None``, whatever the functions say.
    """

    reward_funcs: tuple[RewardFunc, ...] = ()
    rollout_reward_fn: RolloutRewardFn = harness_reward
    advantage: AdvantageName = "group_normalised"
    """How a group's rewards become advantages, see :mod:`longrein.rollout.advantage`."""
    epsilon: float = 1e-4


def score_group(group_id: str, task: Task, rollouts: Sequence[Rollout], settings: RewardSettings) -> RolloutGroup:
    """Reward every rollout and compute advantages inside the group.

    Raises:
        ConfigError: a reward function raised, or returned something other than one number or ``None`` a rollout.
    """
    base = [_base_reward(task, rollout, settings) for rollout in rollouts]
    added = _added_rewards(task, rollouts, base, settings)
    rewards = tuple(_finite(b + a) if b is not None else None for b, a in zip(base, added, strict=True))
    return RolloutGroup(
        group_id=group_id,
        task=task,
        rollouts=tuple(rollouts),
        rewards=rewards,
        advantages=advantages(rewards, settings.epsilon, settings.advantage),
    )


def main_path(trace: Trace) -> tuple[Call, ...]:
    """The conversation of the agent itself: the agent path with the most sampled tokens (empty for no calls)."""
    paths = [path for path in trace.paths() if path[-1].role in ("agent", "retry")]
    return max(paths, key=lambda path: sum(call.completion.token_ids.size for call in path), default=())


def transcript(trace: Trace) -> list[Message]:
    """What the agent's conversation added to its first prompt: replies and tool results, final reply included."""
    path = main_path(trace)
    messages: list[Message] = []
    for index, call in enumerate(path):
        if index:
            messages += call.messages
        messages.append(call.reply)
    return messages


def _base_reward(task: Task, rollout: Rollout, settings: RewardSettings) -> float | None:
    if rollout.failure is not None or rollout.score.reward is None:
        return None
    outcome = Outcome(
        task=task,
        status=rollout.status,
        trace=rollout.trace,
        score=rollout.score,
        metrics=rollout.metrics,
        findings=rollout.findings,
    )
    with _named(settings.rollout_reward_fn, task):
        reward = settings.rollout_reward_fn(outcome)
        return _finite(None if reward is None else float(reward))


def _added_rewards(
    task: Task, rollouts: Sequence[Rollout], base: Sequence[float | None], settings: RewardSettings
) -> list[float]:
    if not settings.reward_funcs:
        return [0.0] * len(rollouts)
    columns: dict[str, Any] = {
        **{key: [value] * len(rollouts) for key, value in task.metadata.items()},
        "prompts": [task.prompt] * len(rollouts),
        "completions": [transcript(rollout.trace) for rollout in rollouts],
        "harness_reward": list(base),
    }
    totals = [0.0] * len(rollouts)
    for function in settings.reward_funcs:
        with _named(function, task):
            values = [0.0 if value is None else float(value) for value in function(**columns)]
        if len(values) != len(rollouts):
            raise ConfigError(
                f"reward function {_name(function)} returned {len(values)} values for {len(rollouts)} rollouts of task "
                f"{task.task_id}; return one a rollout"
            )
        totals = [total + value for total, value in zip(totals, values, strict=True)]
    return totals


@contextmanager
def _named(function: Callable[..., Any], task: Task) -> Generator[None, None, None]:
    """Whatever a user's function raises becomes one error that names it."""
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"reward function {_name(function)} failed on task {task.task_id}: {type(error).__name__}: {error}. Mend "
            "it and start again; the rollouts are in the run directory."
        ) from error


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", repr(function)))


def _finite(reward: float | None) -> float | None:
    """A reward that float32 cannot hold as a number cannot enter a baseline: the rollout counts as unscorable."""
    return float(reward) if reward is not None and abs(reward) <= LARGEST_REWARD else None
