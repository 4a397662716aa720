"""What the Responses dialect wrote comes back as it was, whichever parts of an item an agent keeps."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.gateway.dialect import AgentFinish, Arrival, ChatReply, ChatRequest
from longrein.gateway.dialects.responses.dialect import ResponsesDialect
from longrein.types import Message
from tests.gateway.captures import load, scenarios

DIALECT = ResponsesDialect()
SEALED = "reasoning.encrypted_content"
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "patch"},
    {"type": "local_shell"},
    {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "f"}]},
]
USER = {"role": "user", "content": "go"}
Item = dict[str, Any]


def decode(items: list[Item]) -> ChatRequest:
    body = json.dumps({"input": items, "tools": TOOLS, "include": [SEALED]}).encode()
    return DIALECT.decode(Arrival(path="/v1/responses", body=body))


def written(message: Message, streamed: bool, finish: AgentFinish) -> list[Item]:
    """The items of a reply, as a client gets them."""
    reply = ChatReply(message=message, finish_reason=finish, prompt_tokens=1, completion_tokens=1)
    request = decode([USER])
    if not streamed:
        return json.loads(DIALECT.encode(reply, request, "policy"))["output"]
    events = [json.loads(event.split(b"data: ", 1)[1]) for event in DIALECT.encode_stream(reply, request, "policy")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert items == events[-1]["response"]["output"]
    return items


AGENTS: dict[str, Callable[[Item], Item]] = {
    "codex": lambda item: {**item, "content": None} if item["type"] == "reasoning" else item,
    "opencode": lambda item: {key: item[key] for key in item if key not in ("id", "status")},
    "forgets summaries": lambda item: {**item, "summary": []} if item["type"] == "reasoning" else item,
    "forgets seals": lambda item: {key: item[key] for key in item if key != "encrypted_content"},
    "shows thoughts": lambda item: (
        {"type": "reasoning", "content": item["summary"], "summary": []} if item["type"] == "reasoning" else item
    ),
}
VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
OBJECTS = st.dictionaries(st.text(), VALUES | st.lists(VALUES, max_size=2), max_size=3)
SHELL = st.fixed_dictionaries({"command": st.lists(st.text(), max_size=3)}, optional={"timeout_ms": st.integers(0, 9)})
ARGUMENTS = st.one_of(
    st.tuples(st.sampled_from(["f", "ns__f", "unknown"]), OBJECTS),
    st.tuples(st.just("patch"), st.fixed_dictionaries({"input": st.text()})),
    st.tuples(st.just("local_shell"), SHELL),
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    message: Message = {"role": "assistant", "content": draw(st.text())}
    if reasoning := draw(st.text()):
        message["reasoning_content"] = reasoning
    called = draw(st.lists(ARGUMENTS, max_size=3))
    if called:
        message["tool_calls"] = [
            {
                "id": f"call{place}_{draw(st.integers(0, 10**9))}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for place, (name, arguments) in enumerate(called)
        ]
        message["content"] = message["content"] or None
    return message


def said(message: Message) -> tuple[Any, ...]:
    """All of it but for how arguments are spaced."""
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", [])
    ]
    return message["role"], message["content"] or "", message.get("reasoning_content", ""), calls


@settings(deadline=None, max_examples=200)
@given(
    replies=st.lists(st.tuples(messages(), st.booleans(), st.integers(0, 2)), min_size=1, max_size=3),
    agent=st.sampled_from(sorted(AGENTS)),
    finish=st.sampled_from(["stop", "length"]),
)
def test_any_reply_comes_back_as_it_was(
    replies: list[tuple[Message, bool, int]], agent: str, finish: AgentFinish
) -> None:
    """Also when the stream was cut before its first call and the answer came again: ``cut`` items are left of that."""
    items: list[Item] = [USER]
    expected: list[Message] = [USER]
    for message, streamed, cut in replies:
        echo = [AGENTS[agent](item) for item in written(message, streamed, finish)]
        begun = [item for item in echo[:cut] if item["type"] in ("reasoning", "message")]
        if len(begun) == len(echo) and not message.get("reasoning_content"):
            # Nothing says that it was not said twice.
            begun = []
        assert decode([*items, *begun[:1]]).messages == decode(items).messages or not message.get("reasoning_content")
        items += begun + echo
        expected.append(message)
        for call in message.get("tool_calls", []):
            items.append({"type": "function_call_output", "call_id": call["id"], "output": "ok"})
            expected.append({"role": "tool", "content": "ok"})
        items.append(USER)
        expected.append(USER)
    assert list(map(said, decode(items).messages)) == list(map(said, expected))


RECORDED = [
    (agent, scenario) for agent, scenario in scenarios() if load(agent, scenario)[0].path.endswith("/responses")
]


@pytest.mark.parametrize(("agent", "scenario"), RECORDED)
def test_every_recorded_request_extends_the_one_before(agent: str, scenario: str) -> None:
    threads: defaultdict[str, list[ChatRequest]] = defaultdict(list)
    for request in load(agent, scenario):
        threads[request.arrival.headers.get("thread-id", "")].append(DIALECT.decode(request.arrival))
    assert len(threads) == (2 if scenario == "sub" else 1)
    for thread in threads.values():
        for earlier, later in pairwise(thread):
            assert later.tools == earlier.tools
            assert later.messages[: len(earlier.messages)] == earlier.messages
            new = [message["role"] for message in later.messages[len(earlier.messages) :]]
            # After a cut stream Codex asks the same again; of ``long`` the middle was not kept.
            assert new == ([] if scenario == "reset" else ["assistant", "tool"] * (len(new) // 2))
            assert new or scenario == "reset"
        for message in thread[-1].messages:
            assert message["role"] != "assistant" or message.get("reasoning_content")


def test_thoughts_and_namespaces_of_a_recorded_codex() -> None:
    requests = [DIALECT.decode(request.arrival) for request in load("codex", "sub")]
    names = [tool["function"]["name"] for tool in requests[0].tools]
    assert "multi_agent_v1__spawn_agent" in names and "exec_command" in names
    assert requests[0].asked["hosted_tools"] == ["web_search"]
    call = requests[1].messages[3]
    assert call["tool_calls"][0]["function"]["name"] == "multi_agent_v1__spawn_agent"
    assert call["reasoning_content"] and call["content"]


def test_what_is_left_of_a_cut_answer_does_not_count_when_another_follows() -> None:
    """Codex keeps the thought of the answer that was cut; what it got next was sampled anew."""
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "one"}]}
    other = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "two"}]}
    text = {"role": "assistant", "content": "Yes."}
    new = {"role": "assistant", "content": "Yes.", "reasoning_content": "two"}
    assert decode([USER, thought, other, text, USER]).messages == (USER, new, USER)
    assert decode([USER, thought, thought]).messages == (USER,)
    # A text may have been read by somebody: it stays, unless the same comes again.
    assert len(decode([USER, thought, text, other, text, USER]).messages) == 4
    assert decode([USER, other, text, other, text, USER]).messages == (USER, new, USER)
    # A thought that ran out of tokens was an answer: the user went on from it.
    assert decode([USER, other, USER]).messages == (USER, {**new, "content": ""}, USER)


def test_leading_instructions_are_one_system_message() -> None:
    """Some chat templates refuse a second one."""
    body = {
        "instructions": "a",
        "input": [{"role": "developer", "content": "b"}, USER, {"role": "system", "content": "c"}],
    }
    messages = DIALECT.decode(Arrival(path="/v1/responses", body=json.dumps(body).encode())).messages
    reminded = {"role": "user", "content": "go\n<system-reminder>\nc\n</system-reminder>"}
    assert messages == ({"role": "system", "content": "a\n\nb"}, reminded)


def test_the_same_words_twice_are_two_messages_until_the_input_ends_with_them() -> None:
    text = {"role": "assistant", "content": "Yes."}
    more = {"role": "assistant", "content": "Yes!"}
    for said in ([text, text], [text, text, text], [text, more], [more, text, text, more]):
        assert decode([USER, *said, USER]).messages == (USER, *said, USER)
    assert decode([USER, text, text]).messages == decode([USER, text, text, text]).messages == (USER, text)
    assert decode([USER, more, text, text]).messages == (USER, more, text)


@pytest.mark.parametrize("text", ["", "I look"])
def test_an_answer_with_calls_that_came_twice_is_one_turn(text: str) -> None:
    """It was given again because its stream was cut right before the end."""
    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function} for name in ("a", "b")]
    reply = {"role": "assistant", "content": text, "tool_calls": calls}
    items = written(reply, streamed=True, finish="tool_calls")
    outputs = [{"type": "function_call_output", "call_id": name, "output": "x"} for name in ("a", "b")]
    assert decode([USER, *items, *items, *outputs]).messages == decode([USER, *items, *outputs]).messages
