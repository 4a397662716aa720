"""Digests looked up are the digests made anew, and what is remembered is bounded."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.gateway import stitch
from longrein.gateway.dialect import ChatRequest
from longrein.gateway.recall import CONVERSATIONS, Digested, Recall
from longrein.gateway.tree import CallTree
from tests.gateway.rig import BASH

CALL = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Rules."},
    {"role": "user", "content": "go"},
    {"role": "user", "content": "stop"},
    {"role": "assistant", "content": "done"},
    {"role": "assistant", "content": "done", "reasoning_content": "Hm."},
    {"role": "assistant", "content": "", "tool_calls": [CALL, {**CALL, "id": "b"}]},
    {"role": "tool", "content": "out", "tool_call_id": "a"},
    {"role": "tool", "content": "out", "tool_call_id": "b"},
    {"role": "tool", "content": "out", "tool_call_id": "of nobody"},
]
CONVERSATION = st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=6)


def tool_with(default: object) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"n": {"default": default}}}
    return {"type": "function", "function": {**BASH["function"], "parameters": parameters}}


TOOLS = st.sampled_from([(), (BASH,), (BASH, BASH), *[(tool_with(default),) for default in (1, True, 1.0)]])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(CONVERSATION, TOOLS), min_size=1, max_size=12))
def test_a_request_is_digested_as_if_it_were_the_first(asked: list[tuple[list[Any], tuple[Any, ...]]]) -> None:
    tree = CallTree("s")
    for messages, tools in asked:
        request = ChatRequest(messages=tuple(copy.deepcopy(messages)), tools=copy.deepcopy(tools))
        assert tree.history(request, 10) == CallTree("s").history(request, 10)


def digested(*texts: str) -> Digested:
    messages = tuple({"role": "user", "content": text} for text in texts)
    digests = tuple(text.encode() for text in texts)
    return Digested(messages=messages, meanings=digests, exacts=digests, chains=digests)


def test_a_conversation_that_goes_on_takes_the_place_of_its_beginning() -> None:
    recall = Recall()
    recall.keep(digested("other"))
    conversation = digested("a")
    for length in range(2, 20):
        recall.keep(conversation)
        more = digested(*"abcdefghijklmnopqrstuvwxyz"[:length])
        known = recall.beginning(more.messages)
        assert len(known.messages) == length - 1
        conversation = Digested(
            messages=(*known.messages, *more.messages[length - 1 :]),
            meanings=more.meanings,
            exacts=more.exacts,
            chains=more.chains,
        )
    assert len(recall.beginning(digested("other").messages).messages) == 1


def test_only_so_many_conversations_are_remembered() -> None:
    recall = Recall()
    for number in range(CONVERSATIONS + 1):
        recall.keep(digested(str(number)))
    found = [len(recall.beginning(digested(str(number)).messages).messages) for number in range(CONVERSATIONS + 1)]
    assert found == [0] + [1] * CONVERSATIONS


def test_what_compares_equal_is_kept_once() -> None:
    recall = Recall()
    first = digested("a", "b")
    recall.keep(first)
    again = recall.beginning(copy.deepcopy(first.messages))
    assert again.messages[0] is first.messages[0] and again.messages[1] is first.messages[1]


def test_tools_are_digested_by_what_they_say() -> None:
    recall = Recall()
    assert recall.tools(()) == stitch.NO_TOOLS
    numbers = [(tool_with(default),) for default in (1, True, 1.0, 1)]
    for tools in ((BASH,), (copy.deepcopy(BASH),), (BASH, BASH), (), (BASH,), *numbers):
        assert recall.tools(tools) == stitch.tools_meaning(tools)
