"""What counts as the same message."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from longrein.engines.scripted import Entry, ScriptedEngine, TurnList
from longrein.gateway import ChatRequest, GatewaySettings
from longrein.gateway.dialect import Caller
from longrein.gateway.session import GatewaySession
from longrein.gateway.ticket import Ticket
from longrein.types import Message, Tool
from tests.gateway.rig import BASH, USER, assert_exact, renderer, rig, run_bash, say


async def ask(url: str, messages: list[Any], **fields: Any) -> Message:
    async with aiohttp.ClientSession() as http, http.post(url, json={"messages": messages, **fields}) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return answer["choices"][0]["message"]


def _identity(reply: Message) -> None:
    del reply["role"]
    reply["role"] = "assistant"


def _empty_text(reply: Message) -> None:
    reply["content"] = ""


def _no_content(reply: Message) -> None:
    del reply["content"]


def _compact_arguments(reply: Message) -> None:
    function = reply["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(json.loads(function["arguments"]), separators=(",", ":"))


def _other_ids(reply: Message) -> None:
    reply["tool_calls"][0]["id"] = "call_rewritten"


def _compact_arguments_and_other_ids(reply: Message) -> None:
    _compact_arguments(reply)
    _other_ids(reply)


def _repaired_arguments(reply: Message) -> None:
    """Kept its id: that is the best key there is."""
    reply["tool_calls"][0]["function"]["arguments"] = '{"command": "repaired"}'


def _cache_control(reply: Message) -> None:
    reply["cache_control"] = {"type": "ephemeral"}


@pytest.mark.parametrize(
    "change",
    [
        _identity,
        _empty_text,
        _no_content,
        _compact_arguments,
        _other_ids,
        _compact_arguments_and_other_ids,
        _repaired_arguments,
        _cache_control,
    ],
)
async def test_echo_is_recognised(change: Any) -> None:
    async with rig([run_bash("printf 1.0"), say("done")]) as r:
        reply = await ask(r.url, [USER], tools=[BASH])
        change(reply)
        tool = {"role": "tool", "content": "1.0", "tool_call_id": reply["tool_calls"][0]["id"]}
        await ask(r.url, [USER, reply, tool], tools=[BASH])
        assert [call.parent_id for call in r.trace().calls] == [None, 0]
        assert_exact(r.trace(), r.engine)


async def test_another_reply_is_not_an_echo() -> None:
    async with rig([run_bash("ls"), say("done")]) as r:
        reply = await ask(r.url, [USER], tools=[BASH])
        _other_ids(reply)
        _repaired_arguments(reply)
        tool = {"role": "tool", "content": "1.0", "tool_call_id": "call_rewritten"}
        await ask(r.url, [USER, reply, tool], tools=[BASH])
        assert r.trace().calls[1].branch_reason == "history_changed"


async def test_text_parts_equal_a_string_and_developer_is_system() -> None:
    system = [{"type": "text", "text": "be good", "cache_control": {"type": "ephemeral"}}]
    async with rig([say("one"), say("two")]) as r:
        reply = await ask(r.url, [{"role": "developer", "content": system}, USER])
        parts = {"role": "user", "content": [{"type": "text", "text": "go"}]}
        await ask(r.url, [{"role": "system", "content": "be good"}, parts, reply, USER])
        assert [call.parent_id for call in r.trace().calls] == [None, 0]


async def test_reasoning_may_be_trimmed_or_dropped_but_not_changed() -> None:
    thought = {"role": "assistant", "content": "<think>\nhm \n</think>\n\nyes"}
    for echoed, parent in [("\nhm \n", 0), ("hm", 0), ("", 0), ("something else", None)]:
        async with rig([thought, say("done")]) as r:
            reply = await ask(r.url, [USER])
            assert reply["reasoning_content"] == "\nhm \n"
            echo = {**reply, "reasoning_content": echoed}
            await ask(r.url, [USER, echo, USER])
            assert r.trace().calls[1].parent_id == parent, echoed


async def test_dropped_turn_branches_off_the_turn_before() -> None:
    """mini-swe-agent drops a turn it cannot read and sends an error instead."""
    async with rig([say("one"), say("garbage"), say("two")]) as r:
        reply = await ask(r.url, [USER])
        await ask(r.url, [USER, reply, USER])
        await ask(r.url, [USER, reply, USER, {"role": "user", "content": "format error"}])
        assert [call.parent_id for call in r.trace().calls] == [None, 0, 0]
        assert_exact(r.trace(), r.engine)


async def test_echo_follows_the_sibling_it_came_from() -> None:
    async with rig([run_bash("ls"), run_bash("ls"), say("a"), say("b")]) as r:
        replies = [await ask(r.url, [USER], tools=[BASH]) for _ in range(2)]
        for reply in replies:
            tool = {"role": "tool", "content": "out", "tool_call_id": reply["tool_calls"][0]["id"]}
            await ask(r.url, [USER, reply, tool], tools=[BASH])
        assert [call.parent_id for call in r.trace().calls] == [None, None, 0, 1]
        assert r.trace().calls[1].branch_reason == "repeated"
        assert_exact(r.trace(), r.engine)


class Asked:
    """Requests to a session in-process, with what HTTP tests cannot set: the agent's thread."""

    def __init__(self, *says: Entry) -> None:
        chat = renderer()
        self.engine = ScriptedEngine(TurnList(chat, says), vocab_size=chat.vocab_size, context_length=8192)
        self.session = GatewaySession("s", self.engine, chat, GatewaySettings())

    async def admit(self, messages: list[Message], thread: str = "", tools: tuple[Tool, ...] = (BASH,)) -> Ticket:
        request = ChatRequest(messages=tuple(messages), tools=tools, caller=Caller(thread=thread))
        return await self.session.admit(request)

    async def take(self, messages: list[Message], thread: str = "") -> Message:
        ticket = await self.admit(messages, thread)
        reply = await ticket.answer()
        ticket.delivered()
        ticket.leave()
        return reply.message


THINKING: Message = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes, and more"}
PARTIAL: list[Message] = [
    {"role": "assistant", "content": "", "reasoning_content": "hm"},
    {"role": "assistant", "content": "yes, a", "reasoning_content": "hm\nhm"},
    {"role": "assistant", "content": "", "reasoning_content": "h"},
]


@pytest.mark.parametrize("partial", PARTIAL)
async def test_an_answer_that_arrived_in_part_is_given_again(partial: Message) -> None:
    """Codex keeps what it got of a cut stream, and asks again with it."""
    asked = Asked(THINKING, say("afresh"))
    lost = await asked.admit([USER])
    first = await lost.answer()
    lost.leave()
    assert await asked.take([USER, partial]) == first.message
    assert await asked.take([USER, partial]) == {"role": "assistant", "content": "afresh"}, "it has arrived by now"
    calls = asked.session.trace().calls
    assert [(call.parent_id, call.branch_reason, call.role) for call in calls] == [
        (None, "first", "agent"),
        (None, "repeated", "retry"),
    ]
    assert_exact(asked.session.trace(), asked.engine)


async def test_a_turn_that_goes_on_after_half_an_answer_is_another_history() -> None:
    asked = Asked(THINKING, say("two"))
    await asked.take([USER])
    await asked.take([USER, say("yes, a"), USER])
    assert [call.branch_reason for call in asked.session.trace().calls] == ["first", "history_changed"]


async def test_the_whole_answer_without_a_question_is_continued() -> None:
    asked = Asked(say("one"), say("two"))
    await asked.take([USER, say("one")])
    await asked.take([USER, say("one"), say("one")])
    assert [call.parent_id for call in asked.session.trace().calls] == [None, 0]


async def test_threads_that_ask_the_same_share_nothing() -> None:
    """Two sub-agents with one task: neither a retry nor one generation for both."""
    asked = Asked(run_bash("ls"), run_bash("ls"), say("a"), say("b"))
    tickets = [await asked.admit([USER], thread) for thread in ("one", "two")]
    replies = [(await ticket.answer()).message for ticket in tickets]
    assert len(asked.engine.requests) == 2
    for ticket in tickets:
        ticket.delivered()
        ticket.leave()
    for thread, reply in zip(("one", "two"), replies, strict=True):
        tool = {"role": "tool", "content": "out", "tool_call_id": reply["tool_calls"][0]["id"]}
        await asked.take([USER, reply, tool], thread)
    calls = asked.session.trace().calls
    assert [(call.parent_id, call.role) for call in calls] == [
        (None, "agent"),
        (None, "agent"),
        (0, "agent"),
        (1, "agent"),
    ]


@pytest.mark.parametrize("threads", ["one two", "two one"])
async def test_a_thread_breaks_the_tie_between_equal_conversations(threads: str) -> None:
    asked = Asked(say("same"), say("same"), say("a"), say("b"))
    for thread in threads.split():
        await asked.take([USER], thread)
    for thread in ("one", "two"):
        await asked.take([USER, say("same"), USER], thread)
    parents = [call.parent_id for call in asked.session.trace().calls]
    assert parents == [None, None, threads.split().index("one"), threads.split().index("two")]
