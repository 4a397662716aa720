"""A model that samples the ids of its calls reads them again; the agent knows ours."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from renderers import kimi_k2

from longrein.engines.parsed import ParsedCall, ParsedReply
from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.gateway import ChatRequest, GatewaySettings
from longrein.gateway.addresses import NativeIds, answers_before, readdressed
from longrein.gateway.reply import as_message
from longrein.gateway.session import GatewaySession, take
from longrein.types import Message
from tests import tiny
from tests.gateway.rig import BASH, USER


@cache
def kimi() -> ChatRenderer:
    tokenizer = tiny.tokenizer()
    source = Path(str(kimi_k2.__file__)).read_text()
    marks = {*re.findall(r"<\|[a-z_]+\|>|\[EOS\]|\[BOS\]|\[PAD\]", source), "<think>", "</think>"}
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(marks)})
    return ChatRenderer.of(tokenizer, renderer="kimi-k2")


def call(call_id: str, command: str) -> str:
    body = f'{call_id}<|tool_call_argument_begin|>{{"command": "{command}"}}'
    return f"<|tool_call_begin|>{body}<|tool_call_end|>"


def says(*calls: str) -> Any:
    section = f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>" if calls else "done"
    return kimi().encode(f"{section}<|im_end|>")


def results(reply: Message) -> list[Message]:
    """Of a reply's calls, the last one first."""
    calls: list[dict[str, Any]] = reply["tool_calls"]
    return [
        {"role": "tool", "tool_call_id": one["id"], "content": one["function"]["arguments"]} for one in reversed(calls)
    ]


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation of two turns."""

    reply: Message
    spliced: str
    """What came after the first turn."""
    again: str
    """A rendering of the whole conversation, as a session writes it whose tools have changed."""


async def play(*calls: str) -> Played:
    r = kimi()
    engine = ScriptedEngine(TurnList(r), vocab_size=r.vocab_size, context_length=8192)
    session = GatewaySession("s", engine, r, GatewaySettings())
    engine.tell("s", [says(*calls), says(), says()])
    first = await take(session, ChatRequest(messages=(USER,), tools=(BASH,)))
    messages = (USER, first.message, *results(first.message))
    await take(session, ChatRequest(messages=messages, tools=(BASH,)))
    await take(session, ChatRequest(messages=messages, tools=(BASH, BASH)))
    trace = session.trace()
    assert [one.parent_id for one in trace.calls] == [None, 0, None]
    return Played(
        reply=first.message,
        spliced=r.decode(trace.calls[1].prompt_delta),
        again=r.decode(trace.calls[2].prompt_delta),
    )


def returns(prompt: str) -> list[tuple[str, str]]:
    return re.findall(r'## Return of (\S+)\n\{"command": "(.*?)"\}', prompt)


def test_results_are_returns_of_the_ids_that_were_sampled() -> None:
    played = asyncio.run(play(call("functions.bash:0", "ls"), call("functions.bash:1", "pwd")))
    expected = [("functions.bash:1", "pwd"), ("functions.bash:0", "ls")]
    assert returns(played.spliced) == expected and returns(played.again) == expected
    assert "functions.bash:0<|tool_call_argument_begin|>" in played.again
    # The agent never sees them: an id of ours is one call of the whole session.
    assert all(re.fullmatch("[0-9a-f]{9}", one["id"]) for one in played.reply["tool_calls"])


def test_calls_that_the_model_named_alike_are_told_apart_by_our_ids() -> None:
    played = asyncio.run(play(call("functions.bash:0", "ls"), call("functions.bash:0", "pwd")))
    ours = [one["id"] for one in played.reply["tool_calls"]]
    assert returns(played.spliced) == [(ours[1], "pwd"), (ours[0], "ls")] == returns(played.again)


@pytest.mark.parametrize("native_id", ["", "<|im_end|>", "a b", "a\n", "ü", "x" * 129])
def test_an_id_that_could_be_a_mark_of_the_template_is_not_written_again(native_id: str) -> None:
    parsed = ParsedReply(
        content="",
        reasoning_content="",
        tool_calls=(ParsedCall(name="bash", arguments="{}", native_id=native_id),),
    )
    message = as_message(parsed, "")
    ids = NativeIds()
    ids.learn(message, parsed)
    assert ids.restore((message,)) == (message,)


def turn(*ids: str) -> Message:
    calls = [{"id": one, "type": "function", "function": {"name": "bash", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def test_ids_of_the_agents_own_lead_to_our_calls() -> None:
    new = ({"role": "tool", "tool_call_id": "own1"}, USER, {"role": "tool", "tool_call_id": "lost"})
    shown = readdressed(new, turn("own0", "own1"), turn("a", "b"))
    assert [message.get("tool_call_id") for message in shown] == ["b", None, "lost"]
    assert readdressed(new, turn("", ""), turn("a", "b")) == new


def test_a_late_result_belongs_to_its_own_turn() -> None:
    late = ({"role": "tool", "tool_call_id": "a"},)
    assert answers_before(turn("b"), late, (USER, turn("a")))
    assert not answers_before(turn("b"), late, (USER, turn("c")))
    assert not answers_before(turn("a"), late, (USER, turn("a")))


def test_a_late_result_starts_a_branch_that_says_whose_it_is() -> None:
    async def run() -> None:
        r = kimi()
        engine = ScriptedEngine(TurnList(r), vocab_size=r.vocab_size, context_length=8192)
        session = GatewaySession("s", engine, r, GatewaySettings())
        both = says(call("functions.bash:0", "ls"), call("functions.bash:1", "pwd"))
        engine.tell("s", [both, says(call("functions.bash:2", "cd")), says()])
        messages: list[Message] = [USER]
        first = (await take(session, ChatRequest(messages=tuple(messages), tools=(BASH,)))).message
        early, late = results(first)
        messages += [first, early]
        second = (await take(session, ChatRequest(messages=tuple(messages), tools=(BASH,)))).message
        messages += [second, late]
        await take(session, ChatRequest(messages=tuple(messages), tools=(BASH,)))
        call_made = session.trace().calls[-1]
        assert (call_made.parent_id, call_made.branch_reason) == (None, "not_bridgeable")
        prompt = session.trace().prompt_ids(call_made)
        assert prompt.dtype == np.int32
        assert returns(r.decode(prompt)) == [("functions.bash:1", "pwd"), ("functions.bash:0", "ls")]

    asyncio.run(run())
