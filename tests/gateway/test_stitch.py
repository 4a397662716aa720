"""What counts as the same message."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from longrein.types import Message
from tests.gateway.rig import BASH, USER, assert_exact, rig, run_bash, say


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
