"""What each call was for, from headers or from the shape of the conversations alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.gateway.callers import MAX_METADATA_CHARS, MAX_NAME_CHARS, caller_of
from longrein.gateway.dialect import Caller
from longrein.rollout.group import main_path
from longrein.types import Message, Tool
from tests.gateway.rig import BASH, USER, run_bash, say
from tests.gateway.scripted_agent import SYSTEM, TASK_TOOL, Agent, call_tool, result, user

SUMMARY = "The user wants a file; it is half written so far."


async def test_a_summary_asked_for_apart_is_a_compaction() -> None:
    """OpenCode: its own system prompt, no tools; then the summary as a turn that answers another question."""
    agent = Agent()
    await agent.work(SYSTEM, USER)
    await agent.ask([user("Summarise: go, ls, out")], say("half"), tools=())
    assert agent.roles == ["agent", "auxiliary"], "nothing says yet what it is for"
    await agent.ask([SYSTEM, user("What did we do so far?"), say("half"), user("Continue")], say("ok"))
    assert agent.roles == ["agent", "compaction", "agent"]
    assert agent.reasons[2] == "compaction"
    assert agent.session.trace().calls[1].role_evidence == "call 2 starts anew from what this one answered"


@pytest.mark.parametrize(("over_history", "tools"), [(True, ()), (True, (BASH, TASK_TOOL)), (False, ())])
async def test_a_quoted_summary_is_a_compaction(over_history: bool, tools: tuple[Tool, ...]) -> None:
    """Claude, Codex, Qwen (over the history, with tools or without), Pi (apart, without)."""
    agent = Agent()
    history = await agent.work(SYSTEM, USER)
    asked = [*history, user("Summarise.")] if over_history else [user("Summarise: go, ls, out")]
    await agent.ask(asked, say(SUMMARY), tools=tools)
    goes_on = await agent.work(SYSTEM, user(f"This goes on from an earlier conversation.\n{SUMMARY}\nGo on."))
    await agent.ask(goes_on, say("done"))
    assert agent.roles == ["agent", "compaction", "agent", "agent"]
    assert agent.reasons[2] == "compaction"
    assert [call.parent_id for call in agent.session.trace().calls][3] == 2


async def test_without_tools_over_the_history_it_is_a_summary_a_probe_or_the_last_word() -> None:
    for follows, role in [("anew", "compaction"), ("on", "auxiliary"), ("", "agent")]:
        agent = Agent()
        history = await agent.work(SYSTEM, USER)
        await agent.ask([*history, user("What now?")], say(SUMMARY), tools=())
        if follows:
            await agent.ask([SYSTEM, user("in other words")] if follows == "anew" else history, say("done"))
        assert agent.roles[1] == role, follows


async def test_a_reply_that_is_echoed_is_no_summary() -> None:
    agent = Agent()
    await agent.ask([SYSTEM, USER], say(SUMMARY))
    await agent.ask([user("another system"), USER, say(SUMMARY), user("more")], say("ok"))
    await agent.ask([SYSTEM, USER, say(SUMMARY), user("more")], say("ok"), tools=(BASH,))
    assert agent.roles == ["agent"] * 3
    assert agent.reasons == ["first", "history_changed", "tools_changed"]


@pytest.mark.parametrize("before", [[SYSTEM], [SYSTEM, user("where you are"), say("Got it.")]])
async def test_a_subagent_without_headers_is_known_by_its_task(before: list[Message]) -> None:
    agent = Agent()
    main = await agent.ask([SYSTEM, USER], call_tool("task", prompt="find the answer", kind="search"))
    for _ in range(2):
        sub = await agent.ask([*before, user("find the answer")], run_bash("ls"), tools=(BASH,))
        await agent.ask([*before, user("find the answer"), sub, result(sub)], say("42"), tools=(BASH,))
    await agent.ask([SYSTEM, USER, main, result(main, "42")], say("done"))
    assert agent.roles == ["agent", *["subagent"] * 4, "agent"]
    assert agent.reasons == ["first", "subagent", "", "repeated", "", ""]


async def test_a_short_argument_is_no_task() -> None:
    agent = Agent()
    await agent.work(SYSTEM, USER)
    await agent.ask([user("ls")], say("ok"))
    assert agent.roles == ["agent", "agent"]


async def test_what_a_subagent_compacts_and_goes_on_with_stays_beside_the_agent() -> None:
    sub = Caller(thread="sub", parent_thread="main", role="subagent", evidence="a header")
    agent = Agent()
    await agent.ask([SYSTEM, USER], call_tool("task", prompt="find the answer"), caller=Caller(thread="main"))
    reply = await agent.ask([SYSTEM, user("find the answer")], run_bash("ls"), caller=sub)
    history = [SYSTEM, user("find the answer"), reply, result(reply)]
    await agent.ask([*history, user("Summarise.")], say(SUMMARY), tools=(), caller=sub)
    await agent.ask([SYSTEM, user(f"Go on: {SUMMARY}")], say("42"), caller=sub)
    assert agent.roles == ["agent", "subagent", "compaction", "subagent"]
    assert agent.reasons == ["first", "subagent", "tools_changed", "compaction"]


async def test_a_request_again_is_a_retry_of_the_agents_only() -> None:
    agent = Agent()
    for _ in range(2):
        await agent.ask([user("title?")], say("a title"), tools=())
    for _ in range(2):
        reply = await agent.ask([USER], run_bash("ls"))
    history = [USER, reply, result(reply)]
    for _ in range(2):
        await agent.ask(history, say("done, and this is the longest answer"))
    assert agent.roles == ["auxiliary", "auxiliary", "agent", "retry", "agent", "retry"]
    assert [call.parent_id for call in agent.session.trace().calls] == [None, None, None, None, 3, 3]
    assert [call.call_id for call in main_path(agent.session.trace())] == [3, 4], "a retry stands in the agent's line"


async def test_what_executed_its_tools_is_never_auxiliary() -> None:
    """Whatever a header says."""
    probe = Caller(role="auxiliary", evidence="a header")
    agent = Agent()
    reply = await agent.ask([USER], run_bash("ls"), caller=probe)
    assert agent.roles == ["auxiliary"]
    await agent.ask([USER, reply, result(reply)], say("done"), caller=probe)
    assert agent.roles == ["agent", "auxiliary"]


# --- headers -------------------------------------------------------------------------------------------------------


def codex(kind: Any = "turn", **headers: str) -> dict[str, str]:
    return {"thread-id": "t", "session-id": "s", "x-codex-turn-metadata": json.dumps({"request_kind": kind}), **headers}


@pytest.mark.parametrize(
    ("headers", "thread", "parent", "role"),
    [
        ({}, "", "", ""),
        ({"x-session-id": "a"}, "a", "", ""),
        ({"x-session-id": "b", "x-parent-session-id": "a"}, "b", "a", "subagent"),
        (codex(), "t", "", "agent"),
        (codex("compaction"), "t", "", "compaction"),
        (codex(**{"x-openai-subagent": "collab_spawn", "x-codex-parent-thread-id": "p"}), "t", "p", "subagent"),
        (codex(**{"x-codex-parent-thread-id": "p"}), "t", "p", "subagent"),
        (codex("compaction", **{"x-openai-subagent": "collab_spawn"}), "t", "", "compaction"),
        (codex(**{"x-openai-subagent": "compact"}), "t", "", "compaction"),
        (codex(**{"x-openai-subagent": "memory_consolidation"}), "t", "", "auxiliary"),
        ({"x-claude-code-session-id": "a"}, "a", "", ""),
        ({"x-claude-code-session-id": "a", "x-claude-code-agent-id": "b"}, "a/b", "a", "subagent"),
        ({"session_id": "a"}, "a", "", ""),
    ],
)
def test_headers_name_thread_and_role(headers: dict[str, str], thread: str, parent: str, role: str) -> None:
    caller = caller_of(headers)
    assert (caller.thread, caller.parent_thread, caller.role) == (thread, parent, role)
    assert bool(caller.evidence) == bool(role)


DEEP = "[" * 5000
BAD = [
    "",
    "{",
    "null",
    "[]",
    '"turn"',
    DEEP,
    '{"request_kind": {"a": 1}}',
    '{"request_kind": "' + "x" * MAX_METADATA_CHARS,
]


@pytest.mark.parametrize("metadata", BAD)
def test_malformed_metadata_says_nothing(metadata: str) -> None:
    assert caller_of({"thread-id": "t", "x-codex-turn-metadata": metadata}) == Caller(thread="t")


NAMES = [
    *("thread-id", "session-id", "session_id", "x-session-id", "x-parent-session-id", "x-codex-turn-metadata"),
    *("x-openai-subagent", "x-codex-parent-thread-id", "x-claude-code-session-id", "x-claude-code-agent-id"),
]


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.text() | st.sampled_from([*BAD, "x" * 10_000])))
def test_whatever_headers_say_is_bounded(headers: dict[str, str]) -> None:
    caller = caller_of(headers)
    assert max(map(len, (caller.thread, caller.parent_thread, caller.evidence))) <= 2 * MAX_NAME_CHARS + 1
