"""How often tasks are solved, by their family and difficulty."""

from __future__ import annotations

from longrein.rollout.schedule import outcome_of
from longrein.tasks.kinds import kind_of
from longrein.types import RolloutGroup


def pass_rate(group: RolloutGroup) -> dict[str, float]:
    """``{"pass_rate/codec/2": 0.25}``: solved of the judged rollouts; empty without a family, or without a verdict."""
    outcome, kind = outcome_of(group), kind_of(group.task.metadata)
    return {f"pass_rate/{kind}": outcome.solved / outcome.judged} if kind and outcome.judged else {}
