"""What holds for every conversation in the Messages dialect."""

from __future__ import annotations

import itertools
import json
from typing import Any

import anthropic
import httpx2
import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longrein.errors import GatewayRequestError
from longrein.gateway import stitch
from longrein.gateway.dialect import Arrival, ChatReply, ChatRequest
from longrein.gateway.dialects.messages.dialect import MessagesDialect
from longrein.types import Message

USER: Any = {"role": "user", "content": "go"}
DIALECT = MessagesDialect()


def decode(*messages: Any) -> ChatRequest:
    data = json.dumps({"max_tokens": 9, "messages": [*messages]}).encode()
    return DIALECT.decode(Arrival(path="/v1/messages", body=data))


# What a model can say: any text without lone surrogates, any JSON object as arguments.
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
INPUT = st.dictionaries(TEXT, st.recursive(st.none() | st.booleans() | st.integers() | TEXT, st.lists, max_leaves=5))
ARGUMENTS = INPUT.map(json.dumps) | INPUT.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1)) | TEXT
CALLS = st.lists(st.tuples(st.from_regex(r"[a-z0-9]{9}", fullmatch=True), ARGUMENTS), max_size=3)


def said(reasoning: str, content: str, calls: list[tuple[str, str]]) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
            for call_id, arguments in calls
        ]
    return message


@settings(deadline=None, max_examples=60)
@given(st.builds(said, TEXT, TEXT, CALLS), st.booleans())
@example(said("a thought", "text", [("abcdefghi", '{"n": 12345678901234567890123, "x": 1.0}')]), True)
@example(said("", "", [("abcdefghi", "[1, 2]")]), False)
@example(said("\u2028", "line ends\r\n of \x0b all \x85 kinds", []), True)
def test_an_answer_echoed_block_by_block_is_the_same_message(message: Message, stream: bool) -> None:
    """Through the official client, whole and streamed."""
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    reply = ChatReply(message=message, finish_reason=finish, prompt_tokens=3, completion_tokens=2)
    echo = stream_answer(reply) if stream else whole_answer(reply)
    came_back = decode(USER, {"role": echo.role, "content": blocks_of(echo)}, USER).messages[1]
    assert stitch.meaning(came_back) == stitch.meaning(message)
    assert came_back.get("reasoning_content") == message.get("reasoning_content")
    assert came_back["content"] == message["content"]
    assert stitch.call_ids(came_back) == stitch.call_ids(message)


def blocks_of(message: anthropic.types.Message) -> list[dict[str, Any]]:
    return [block.to_dict(mode="json") for block in message.content]


def client_of(data: bytes, kind: str) -> anthropic.Anthropic:
    """The official client in front of one answer."""
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=data, headers={"content-type": kind}))
    return anthropic.Anthropic(api_key="x", http_client=httpx2.Client(transport=transport), max_retries=0)


def whole_answer(reply: ChatReply) -> anthropic.types.Message:
    with client_of(DIALECT.encode(reply, decode(USER), "policy"), "application/json") as client:
        return client.messages.create(model="policy", max_tokens=9, messages=[USER])


def stream_answer(reply: ChatReply) -> anthropic.types.Message:
    events = b"".join(DIALECT.encode_stream(reply, decode(USER), "policy"))
    with (
        client_of(events, "text/event-stream") as client,
        client.messages.stream(model="policy", max_tokens=9, messages=[USER]) as stream,
    ):
        return stream.get_final_message()


BLOCK = st.tuples(st.sampled_from(["system", "user", "assistant"]), TEXT.filter(bool))


@settings(deadline=None, max_examples=100)
@given(st.lists(BLOCK, min_size=1, max_size=8), st.data())
def test_how_text_is_grouped_and_marked_says_nothing(blocks: list[tuple[str, str]], data: st.DataObject) -> None:
    """One message a block, or blocks of a role together; as strings or parts; with marks wherever they are."""
    blocks.append(("user", "go"))
    alone = [{"role": role, "content": content} for role, content in blocks]
    grouped: list[dict[str, Any]] = []
    for role, content in blocks:
        marks = {"cache_control": {"type": "ephemeral"}} if data.draw(st.booleans()) else {}
        part = {"type": "text", "text": content, **marks}
        if grouped and grouped[-1]["role"] == role and data.draw(st.booleans()):
            grouped[-1]["content"].append(part)
        else:
            grouped.append({"role": role, "content": [part]})
    turns = decode(*grouped).messages
    assert turns == decode(*alone).messages
    assert all(turn["role"] != after["role"] for turn, after in itertools.pairwise(turns))


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KINDS = st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", ""])
ODD_BLOCK = st.fixed_dictionaries(
    {"type": KINDS | ANY_JSON},
    optional=dict.fromkeys(
        ("text", "thinking", "data", "id", "name", "input", "tool_use_id", "content", "is_error"), ANY_JSON
    ),
)
ODD_MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]) | ANY_JSON,
        "content": TEXT | st.lists(ODD_BLOCK, max_size=3) | ANY_JSON,
    }
)
ODD_BODY = st.fixed_dictionaries(
    {"messages": st.lists(ODD_MESSAGE, max_size=3) | ANY_JSON, "max_tokens": st.integers() | ANY_JSON},
    optional=dict.fromkeys(
        ("system", "tools", "stop_sequences", "stream", "output_config", "thread", "metadata", "top_k"), ANY_JSON
    ),
)


@settings(deadline=None, max_examples=150)
@given(ODD_BODY)
def test_whatever_is_sent_is_read_or_refused(odd: Any) -> None:
    data = json.dumps(odd).encode()
    try:
        request = DIALECT.decode(Arrival(path="/v1/messages", body=data))
    except GatewayRequestError as error:
        assert error.status == 400
        msgspec.json.decode(DIALECT.encode_error(error))
    else:
        msgspec.json.encode(request)
        assert {message["role"] for message in request.messages} <= {"system", "user", "assistant", "tool"}
        assert all(isinstance(message["content"], str) for message in request.messages)
