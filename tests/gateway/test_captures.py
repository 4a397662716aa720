"""Recorded sessions of 20 agent variants, played again: one branch with exact prefixes, or branches with a reason."""

from __future__ import annotations

import msgspec
import pytest

from longrein.types import Message, Role
from tests.gateway.captures import load, scenarios
from tests.gateway.replay import Step, play, script
from tests.gateway.rig import assert_exact, rig

CONTEXT_LENGTH = 300_000
"""One token a byte."""


class Seen(msgspec.Struct, frozen=True):
    """What is told of one call."""

    parent_id: int | None
    branch_reason: str
    role: Role


def talk(first: int, turns: int, reason: str = "new_conversation", role: Role = "agent") -> list[Seen]:
    """A conversation of so many turns, call ``first`` being its root."""
    return [Seen(None, reason, role), *[Seen(first + n, "", role) for n in range(turns - 1)]]


TITLE = talk(0, 1, "first", "auxiliary")
RETRY = Seen(None, "repeated", "retry")
# See agents.md for what these agents do. All other recordings are one conversation.
BRANCHES = {
    ("opencode", "ok"): TITLE + talk(1, 3),
    ("opencode", "badjson"): TITLE + talk(1, 3),
    ("opencode", "badtool"): TITLE + talk(1, 3),
    ("opencode", "long"): TITLE + talk(1, 16),
    ("opencode", "e500once"): [*TITLE, *talk(1, 1), RETRY, Seen(2, "", "agent"), Seen(3, "", "agent")],
    ("opencode", "reset"): [*TITLE, *talk(1, 1), *[RETRY] * 5],
    ("opencode", "sub"): [
        *TITLE,
        *talk(1, 1),
        *talk(2, 3, "subagent", "subagent"),
        Seen(1, "", "agent"),
        Seen(5, "", "agent"),
    ],
    # Each summary is followed by a conversation that goes on from it; and each time the context is too long again.
    ("opencode", "ctx"): [
        *TITLE,
        *talk(1, 1),
        Seen(None, "new_conversation", "compaction"),
        Seen(None, "compaction", "agent"),
        Seen(None, "new_conversation", "compaction"),
        Seen(None, "compaction", "agent"),
        Seen(None, "repeated", "compaction"),
        Seen(None, "compaction", "agent"),
    ],
    # The gateway shows bad JSON as text, so the call that Codex sends back is none of ours.
    ("codex", "badjson"): talk(0, 1, "first") + talk(1, 2, "history_changed"),
    # What arrived of a cut answer stands at the end of the next request.
    ("codex", "reset"): [*talk(0, 1, "first"), *[RETRY] * 5],
    ("codex", "sub"): [*talk(0, 2, "first"), *talk(2, 2, "subagent", "subagent"), Seen(1, "", "agent")],
    # Turns that it cannot read are dropped: what follows branches off the turn before, if there is one.
    ("mini-swe-agent", "ok"): [*talk(0, 3, "first"), Seen(1, "", "agent"), Seen(1, "", "agent")],
    ("mini-swe-agent", "badjson"): talk(0, 1, "first") + talk(1, 3, "history_changed"),
    ("pi", "reset"): [*talk(0, 1, "first"), *[RETRY] * 3],
    ("qwen-code_0.15.10", "badjson"): [*talk(0, 1, "first"), RETRY, Seen(1, "", "agent")],
    # Its last answer is asked for without tools and under another system prompt.
    ("smolagents_tool", "ok"): [*talk(0, 5, "first"), Seen(None, "system_changed", "agent")],
}


@pytest.mark.parametrize(("agent", "scenario"), scenarios())
async def test_a_recorded_session_is_one_branch_or_says_why(agent: str, scenario: str) -> None:
    steps = script(load(agent, scenario))
    if (agent, scenario) == ("opencode", "ctx"):
        steps = [with_summaries(step, at, steps) for at, step in enumerate(steps)]
    async with rig([], context_length=CONTEXT_LENGTH) as r:
        await play(r, steps)
        trace = r.trace()
        assert_exact(trace, r.engine)
    seen = [Seen(call.parent_id, call.branch_reason, call.role) for call in trace.calls]
    assert seen == BRANCHES.get((agent, scenario), talk(0, len(steps), "first"))
    assert all(call.role_evidence and call.delivered for call in trace.calls)


def with_summaries(step: Step, at: int, steps: list[Step]) -> Step:
    """OpenCode's summaries stand in the request after theirs, as a turn of ours in a conversation of its own."""
    follows = steps[at + 1].messages if at + 1 < len(steps) else ()
    summary = next((message for message in follows if message["role"] == "assistant"), None)
    return step if summary is None else msgspec.structs.replace(step, reply=summary)


@pytest.mark.parametrize(
    ("agent", "scenario", "at", "says"),
    [
        ("opencode", "badtool", 1, {"name": "no_such_tool", "arguments": '{"path": "x"}'}),
        ("pi", "badjson", 0, {"name": "bash", "arguments": '{"command": "ls", "unclosed": "..."}'}),
        ("qwen-code_0.24.4", "ok", 0, {"name": "run_shell_command", "arguments": '{"command": "ls"}'}),
    ],
)
async def test_a_call_that_the_agent_has_mended_is_still_the_one_that_was_sampled(
    agent: str, scenario: str, at: int, says: dict[str, str]
) -> None:
    steps = script(load(agent, scenario))
    (call,) = steps[at].reply["tool_calls"]
    said: Message = {**steps[at].reply, "tool_calls": [{**call, "function": says}]}
    async with rig([], context_length=CONTEXT_LENGTH) as r:
        await play(r, steps, {at: said})
        trace = r.trace()
        assert_exact(trace, r.engine)
    assert len(list(trace.paths())) == (2 if agent == "opencode" else 1)
    assert trace.calls[at].reply["tool_calls"][0]["function"] == says
    assert [call.parent_id for call in trace.calls[at + 1 :]] == list(range(at, len(steps) - 1))
