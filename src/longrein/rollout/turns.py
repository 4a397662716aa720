"""A user's own say in which calls are the agent's turns, and which of them train.

Asked once a rollout, before it is rewarded and written down; what came of it is recorded with each call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import msgspec

from longrein.errors import ConfigError
from longrein.types import Call, Role, Rollout, RolloutGroup, Trace
from longrein.views import Turn

TrainTurnFn = Callable[[Turn], bool]
AgentTurnFn = Callable[[Trace], Iterable[Call]]

AGENT_ROLES: frozenset[Role] = frozenset({"agent", "subagent", "retry"})


def every_turn(turn: Turn) -> bool:
    """The default ``train_turn_fn``: what trains is left to the roles' weights."""
    return True


def has_tool_call(turn: Turn) -> bool:
    """A ``train_turn_fn`` that trains actions and no prose."""
    return bool(turn.tool_calls)


def turns_by_role(trace: Trace) -> list[Call]:
    """The default ``agent_turn_fn``: the calls that the gateway took for the agent's, its sub-agents' included."""
    return [call for call in trace.calls if call.role in AGENT_ROLES]


class TurnSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who decides about turns. Both functions must be importable in the rollout process."""

    train_turn_fn: TrainTurnFn = every_turn
    agent_turn_fn: AgentTurnFn = turns_by_role


def choose_turns(group: RolloutGroup, settings: TurnSettings) -> RolloutGroup:
    """The group with the functions' decisions in its calls: ``role``, ``role_evidence`` and ``trains``.

    Raises:
        ConfigError: a function raised, or ``agent_turn_fn`` returned something else than calls of its trace.
    """
    rollouts = tuple(_chosen(rollout, settings) for rollout in group.rollouts)
    return msgspec.structs.replace(group, rollouts=rollouts)


def _chosen(rollout: Rollout, settings: TurnSettings) -> Rollout:
    with _named("agent_turn_fn", settings.agent_turn_fn, rollout):
        kept = list(settings.agent_turn_fn(rollout.trace))
    turns = frozenset(_call_id(item, rollout.trace, settings.agent_turn_fn) for item in kept)
    calls = tuple(_decided(call, call.call_id in turns, _name(settings.agent_turn_fn)) for call in rollout.trace.calls)
    trace = msgspec.structs.replace(rollout.trace, calls=calls)
    with _named("train_turn_fn", settings.train_turn_fn, rollout):
        trains = [bool(settings.train_turn_fn(Turn(trace=trace, call=call))) for call in calls]
    calls = tuple(msgspec.structs.replace(call, trains=yes) for call, yes in zip(calls, trains, strict=True))
    return msgspec.structs.replace(rollout, trace=msgspec.structs.replace(trace, calls=calls))


def _decided(call: Call, is_turn: bool, name: str) -> Call:
    if is_turn == (call.role in AGENT_ROLES):
        return call
    if is_turn:
        return msgspec.structs.replace(call, role="agent", role_evidence=f"agent_turn_fn {name} kept it")
    return msgspec.structs.replace(call, role="auxiliary", role_evidence=f"agent_turn_fn {name} left it out")


def _call_id(item: object, trace: Trace, function: AgentTurnFn) -> int:
    if isinstance(item, Call) and item.call_id < len(trace.calls) and trace.calls[item.call_id] is item:
        return item.call_id
    raise ConfigError(
        f"agent_turn_fn {_name(function)} returned {type(item).__name__} instead of one of trace.calls; return those "
        "calls that are the agent's turns"
    )


@contextmanager
def _named(argument: str, function: Callable[..., Any], rollout: Rollout) -> Generator[None, None, None]:
    """Whatever a user's function raises becomes one error that names it."""
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"{argument} {_name(function)} failed on task {rollout.task_id}: {type(error).__name__}: {error}. Mend it "
            "and start again; the rollouts are in the run directory."
        ) from error


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", repr(function)))
