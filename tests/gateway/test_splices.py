"""Never a silently wrong splice: agents change what they send back, and a prompt still says what was asked.

The oracle knows nothing of the gateway: it reads the ids that the engine saw back into messages.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.gateway import GatewaySettings
from longrein.gateway.session import GatewaySession
from longrein.types import I32, Call, Message
from tests import tiny
from tests.gateway.changes import (
    CHANGES,
    SAME,
    Draw,
    Talk,
    Turn,
    answers_out_of_order,
    drops_the_last_turn,
    nothing,
    reminds_at_the_end,
    turns,
)
from tests.gateway.rig import assert_exact, renderer

SHOWN = "{% else %}<|im_start|>{{ message.role }}\n"
LABEL = (
    "{% for m in messages[:loop.index0] %}{% for call in m.tool_calls or [] %}"
    "{% if call.id == message.tool_call_id %}[{{ call.function.name }} {{ call.id }}]{% endif %}"
    "{% endfor %}{% endfor %}"
)
LABELS_RESULTS = tiny.CHATML.replace(SHOWN, SHOWN + LABEL)
"""A template that looks a result's tool up by its id (as Mistral's, Gemma 4's and Kimi's do), and shows both."""
TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
LABELLED = re.compile(r"^\[(\w+) (\w+)\]")
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@cache
def speaker(template: str) -> ChatRenderer:
    return ChatRenderer.of(tiny.tokenizer(template))


def read_back(prompt: I32) -> list[Message]:
    """The conversation in a prompt, tools and thoughts left out."""
    messages: list[Message] = []
    for role, raw in TURN.findall(renderer().decode(prompt)):
        text = raw
        if role == "system":
            text = re.sub(r"(^|\n)Tools:\n.*Call one as .*$", "", text, flags=re.DOTALL)
        if role == "assistant":
            text = re.sub(r"^<think>.*?</think>", "", text, flags=re.DOTALL)
        said = [json.loads(call) for call in CALL.findall(text)]
        label = LABELLED.match(text) if role == "tool" else None
        text = LABELLED.sub("", text) if label else text
        messages.append({"role": role, "content": CALL.sub("", text), "calls": said, "label": label and label[1]})
    return [m for m in messages if m["role"] != "system" or m["content"]]


def says_the_same(asked: Message, seen: Message, ours: dict[str, dict[str, Any]]) -> bool:
    """Whether a message that was asked about is the one that the model saw; ``ours`` are the calls we gave ids to."""
    if asked["role"] != "assistant":
        return (asked["role"], asked["content"]) == (seen["role"], seen["content"])
    tool_calls = asked.get("tool_calls") or []
    known = bool(tool_calls) and all(call["id"] in ours for call in tool_calls)
    calls = [
        # What the model sampled counts, not what an agent has made of it under the same id.
        ours[call["id"]] if known else {**call["function"], "arguments": json.loads(call["function"]["arguments"])}
        for call in tool_calls
    ]
    text = (asked["content"] or "").strip()
    return (
        seen["role"] == "assistant"
        and seen["calls"] == calls
        and (text == seen["content"].strip() or (known and not text))
    )


def labels_match(asked: list[Message], seen: list[Message]) -> bool:
    """Whether every result is labelled with the name that its call has in the same prompt."""
    names: dict[str, str] = {}
    for left, right in zip(asked, seen, strict=True):
        for call, shown in zip(left.get("tool_calls") or [], right["calls"], strict=False):
            names[call["id"]] = shown["name"]
        if left.get("tool_call_id") in names and right["label"] != names[left["tool_call_id"]]:
            return False
    return True


VERBATIM = (nothing, answers_out_of_order, reminds_at_the_end, drops_the_last_turn)
"""Changes after which a splice and a rendering of the whole conversation are one text."""


def open_session(chat: ChatRenderer) -> tuple[GatewaySession, ScriptedEngine]:
    engine = ScriptedEngine(TurnList(chat), vocab_size=chat.vocab_size, context_length=8192)
    return GatewaySession("s", engine, chat, GatewaySettings()), engine


def check(call: Call, talk: Talk, asked: list[Message], expected: str, *, labelled: bool) -> None:
    trace = talk.session.trace()
    ours = {
        tool_call["id"]: {**tool_call["function"], "arguments": json.loads(tool_call["function"]["arguments"])}
        for one in trace.calls
        for tool_call in one.reply.get("tool_calls") or []
    }
    seen = read_back(trace.prompt_ids(call))
    # In a prompt that was rendered whole, calls are as the agent sent them.
    ids = ours if call.parent_id is not None else {}
    assert len(seen) == len(asked), (seen, asked)
    assert all(says_the_same(left, right, ids) for left, right in zip(asked, seen, strict=True)), (asked, seen)
    assert not labelled or labels_match(asked, seen), (asked, seen)
    if expected == SAME:
        assert (call.parent_id, call.branch_reason) == (talk.call_ids[-2], ""), call.branch_reason
    else:
        assert (call.parent_id, call.branch_reason) == (None, expected)


@pytest.mark.parametrize("change", CHANGES)
@settings(
    deadline=None,
    max_examples=50,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
)
@given(
    data=st.data(),
    script=st.lists(turns, min_size=1, max_size=4),
    system=st.booleans(),
    template=st.sampled_from([tiny.CHATML, LABELS_RESULTS]),
)
def test_a_prompt_says_what_was_asked_whatever_the_agent_changed(
    data: st.DataObject, script: list[Turn], system: bool, template: str, change: Callable[[Talk, Draw], str]
) -> None:
    async def run() -> None:
        session, engine = open_session(speaker(template))
        lead = [{"role": "system", "content": "be good"}] if system else []
        first, second = (Talk(session, engine, [*lead, {"role": "user", "content": name}]) for name in ("a", "b"))
        for turn in script:
            # A second conversation with the same answers runs beside it, and none may end up in the other.
            for talk in (first, second):
                await talk.go_on(turn)
        for talk in (first, second):
            assert [session.trace().calls[call_id].parent_id for call_id in talk.call_ids] == [
                None,
                *talk.call_ids[:-1],
            ]
        expected = change(first, data.draw)
        asked = first.messages
        await first.ask(Turn("", "last", [], ""))
        call = session.trace().calls[-1]
        check(call, first, asked, expected, labelled=template == LABELS_RESULTS)
        word_for_word = change in VERBATIM and not any(turn.thinks for turn in script)
        if call.parent_id is None or word_for_word:
            again = speaker(template).render(tuple(asked), first.tools)
            assert renderer().decode(session.trace().prompt_ids(call)) == renderer().decode(again)
        assert_exact(session.trace(), engine)

    asyncio.run(run())
