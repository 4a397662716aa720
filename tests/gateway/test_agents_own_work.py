"""What an agent does itself keeps a role that trains, however unlike an agent's its requests look."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.gateway.callers import caller_of
from longrein.gateway.dialect import Caller
from longrein.types import Message
from tests.gateway.rig import BASH, USER, run_bash, say
from tests.gateway.scripted_agent import SYSTEM, Agent, call_tool, result, user

REPORT = "The bug is in parser.py line 10: it drops the last token."
WRITER: Message = {"role": "system", "content": "you write"}


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(st.sampled_from(["goes on", "rewrites its turn"]), min_size=2, max_size=4),
    side_requests=st.lists(st.integers(0, 4), min_size=1, max_size=3),
)
def test_a_conversation_without_tools_is_the_agents_whatever_is_asked_beside_it(
    turns: list[str], side_requests: list[int]
) -> None:
    """A text-mode agent, beside which some have tools: agents that it manages, or its shell's own requests."""

    async def run() -> list[str]:
        agent, own, history = Agent(), list[int](), [SYSTEM, USER]
        for number, turn in enumerate(turns):
            for side in range(side_requests.count(number)):
                await agent.ask([user(f"side {number} {side}")], say("ok"), tools=(BASH,))
            reply = await agent.ask(history, say(f"```ls {number}```"), tools=())
            own.append(len(agent.session.trace().calls) - 1)
            kept = reply if turn == "goes on" else say(f"I ran: {reply['content']}")
            history = [*history, kept, user("output")]
        await agent.ask([user("at the end")], say("ok"), tools=(BASH,))
        return [agent.roles[call_id] for call_id in own]

    assert asyncio.run(run()) == ["agent"] * len(turns)


async def test_a_last_word_without_tools_is_the_sub_agents() -> None:
    for header in ("subagent", ""):
        main = Caller(thread="s" if header else "")
        sub = Caller(thread="s/1", parent_thread="s", role="subagent", evidence="a header") if header else main
        agent = Agent()
        reply = await agent.ask([SYSTEM, USER], call_tool("task", prompt="look for the file"), caller=main)
        asked = await agent.ask([SYSTEM, user("look for the file")], run_bash("ls"), caller=sub)
        history = [SYSTEM, user("look for the file"), asked, result(asked), user("Answer now, without tools.")]
        await agent.ask(history, say("It is in /tmp."), tools=(), caller=sub)
        await agent.ask([SYSTEM, USER, reply, result(reply, "It is in /tmp.")], say("done"), caller=main)
        assert agent.roles == ["agent", "subagent", "subagent", "agent"], header


@pytest.mark.parametrize("role", ["agent", "subagent"])
async def test_a_header_says_more_than_what_goes_on_without_the_answer(role: Literal["agent", "subagent"]) -> None:
    caller = Caller(thread="t", role=role, evidence="a header")
    agent = Agent()
    reply = await agent.ask([SYSTEM, USER], run_bash("ls"), caller=caller)
    history = [SYSTEM, USER, reply, result(reply)]
    await agent.ask([*history, user("What now?")], say(REPORT), tools=(), caller=caller)
    await agent.ask(history, say("done"), caller=caller)
    assert agent.roles == [role] * 3


async def test_a_sub_agent_without_tools_is_one() -> None:
    named = Caller(thread="s/1", parent_thread="s", role="subagent", evidence="a header")
    for caller, asks in [(Caller(), "write it in verse"), (named, "Write in verse, please.")]:
        agent = Agent()
        reply = await agent.ask([SYSTEM, USER], call_tool("task", prompt="write it in verse"))
        await agent.ask([WRITER, user(asks)], say("A file, a smile."), tools=(), caller=caller)
        await agent.ask([SYSTEM, USER, reply, result(reply, "A file, a smile.")], say("done"))
        assert agent.roles == ["agent", "subagent", "agent"]


@pytest.mark.parametrize("lead", [SYSTEM, WRITER])
async def test_a_turn_without_tools_that_stays_in_the_history_is_the_agents(lead: Message) -> None:
    """A plan, or the answer of an agent to which the conversation was handed over."""
    agent = Agent()
    history = await agent.work(SYSTEM, USER)
    plan = await agent.ask([lead, *history[1:], user("A plan, please.")], say(REPORT), tools=())
    await agent.ask([*history, user("A plan, please."), plan, user("Go on.")], say("done"))
    assert agent.roles == ["agent"] * 3


@pytest.mark.parametrize("asked_by", ["tool", "user"])
@pytest.mark.parametrize("reader", ["coder", "judge", "text mode"])
async def test_an_answer_that_is_quoted_to_another_agent_is_no_summary(reader: str, asked_by: str) -> None:
    agent = Agent()
    history = await agent.work(SYSTEM, USER)
    if asked_by == "user":
        history = [*history, user("And?")]
    await agent.ask(history, say(REPORT))
    tools = {"tools": ()} if reader != "coder" else {}
    await agent.ask([WRITER, user(f"The report:\n{REPORT}")], say("well"), **tools)
    if reader == "text mode":
        await agent.ask([WRITER, user(f"The report:\n{REPORT}"), say("well"), USER], say("well"), tools=())
    assert agent.roles[:2] == ["agent"] * 2
    assert (agent.roles[2], agent.reasons[2]) == ("auxiliary" if reader == "judge" else "agent", "new_conversation")


async def test_an_answer_that_is_quoted_is_no_summary_where_its_conversation_goes_on() -> None:
    for goes_on_from in ("the answer", "before it"):
        agent = Agent()
        history = [*await agent.work(SYSTEM, USER), user("Report.")]
        report = await agent.ask(history, say(REPORT))
        await agent.ask([SYSTEM, user(f"Check this: {REPORT}")], say("checked"))
        later = [report] if goes_on_from == "the answer" else [user("Or rather not.")]
        await agent.ask([*history, *later, USER], say("done"))
        assert agent.roles == ["agent"] * 4, goes_on_from
        assert "summary" not in agent.session.trace().calls[2].role_evidence


async def test_without_tools_before_another_agents_turn_it_is_the_last_word() -> None:
    """The next conversation has another system prompt, or is not the very next thing that is asked."""
    for between in (False, True):
        agent = Agent()
        history = await agent.work(SYSTEM, USER)
        await agent.ask([*history, user("What now?")], say(REPORT), tools=())
        if between:
            await agent.ask([WRITER, user("a line")], say("well"), tools=())
        await agent.ask([SYSTEM if between else WRITER, user("something else")], say("done"))
        assert agent.roles[1] == "agent", between


async def test_codex_names_its_compaction() -> None:
    """The header decides, even where the shape says nothing."""
    named = caller_of({"thread-id": "t", "x-codex-turn-metadata": json.dumps({"request_kind": "compaction"})})
    turn = caller_of({"thread-id": "t", "x-codex-turn-metadata": json.dumps({"request_kind": "turn"})})
    agent = Agent()
    reply = await agent.ask([SYSTEM, USER], run_bash("ls"), caller=turn)
    history = [SYSTEM, USER, reply, result(reply)]
    await agent.ask([*history, user("Summarise.")], say("short"), caller=named)
    await agent.ask([SYSTEM, user("in other words")], say("done"), caller=turn)
    assert agent.roles == ["agent", "compaction", "agent"]
    assert agent.session.trace().calls[1].role_evidence == "x-codex-turn-metadata: request_kind compaction"
