"""What a user's own functions say about turns is recorded with the calls, and nothing else changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from longrein.errors import ConfigError
from longrein.rollout.turns import TurnSettings, choose_turns, has_tool_call
from longrein.rows import rows_from_rollout
from longrein.types import Call, RolloutGroup, Trace
from longrein.views import Turn
from tests.traces import TASK, call, rollout

ACTION = {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "{}"}}]}
TITLE = call(0, None, [1], [2], role="auxiliary", role_evidence="no tools")
FIRST = call(1, None, [3], [4], reply=ACTION, tools=({"type": "function"},))
LAST = call(2, 1, [5], [6])
GROUP = RolloutGroup(group_id="g", task=TASK, rollouts=(rollout("r", [TITLE, FIRST, LAST]),))


def chosen(**functions: Any) -> Trace:
    return choose_turns(GROUP, TurnSettings(**functions)).rollouts[0].trace


def test_by_default_nothing_changes() -> None:
    assert chosen() == GROUP.rollouts[0].trace


def test_train_turn_fn_sees_a_turn_and_its_no_is_recorded() -> None:
    seen: list[Turn] = []

    def actions_only(turn: Turn) -> bool:
        seen.append(turn)
        return has_tool_call(turn)

    trace = chosen(train_turn_fn=actions_only)
    assert [item.trains for item in trace.calls] == [False, True, False]
    assert [turn.index for turn in seen] == [0, 1, 2]
    last = seen[-1]
    assert [message["content"] for message in last.messages] == ["m1", "", "m2"]
    assert (last.role, last.content, last.tool_calls, len(last.tools)) == ("agent", "r2", [], 1)
    made = rows_from_rollout(msgspec.structs.replace(GROUP.rollouts[0], trace=trace), advantage=1.0)
    assert made.untrained == {"train_turn_fn": 2}


def test_agent_turn_fn_decides_roles() -> None:
    def all_but_the_last(trace: Trace) -> list[Call]:
        return list(trace.calls[:-1])

    roles = [(item.role, item.role_evidence) for item in chosen(agent_turn_fn=all_but_the_last).calls]
    assert roles == [
        ("agent", "agent_turn_fn all_but_the_last kept it"),
        ("agent", ""),
        ("auxiliary", "agent_turn_fn all_but_the_last left it out"),
    ]


def test_a_function_that_fails_is_named() -> None:
    def confused(_: Any) -> Any:
        raise KeyError("oops")

    def returns_ids(trace: Trace) -> list[int]:
        return [0]

    for argument in ("train_turn_fn", "agent_turn_fn"):
        with pytest.raises(ConfigError, match=f"{argument} confused failed on task t: KeyError"):
            chosen(**{argument: confused})
    with pytest.raises(ConfigError, match="returned int instead of one"):
        chosen(agent_turn_fn=returns_ids)
