"""The Gemini dialect with anything a client may send, and anything a model may say."""

from __future__ import annotations

import json
from typing import Any

from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import GatewayRequestError
from longrein.gateway import stitch
from longrein.gateway.dialect import Arrival, ChatReply, ChatRequest
from longrein.gateway.dialects.gemini.dialect import GeminiDialect
from longrein.types import Message

DIALECT = GeminiDialect()
STREAM = "/v1beta/models/policy:streamGenerateContent"
HI: dict[str, Any] = {"role": "user", "parts": [{"text": "hi"}]}
THOUGHTS = {"thinkingConfig": {"includeThoughts": True}}


def read(contents: list[dict[str, Any]]) -> ChatRequest:
    body = json.dumps({"contents": contents, "generationConfig": THOUGHTS}).encode()
    return DIALECT.decode(Arrival(path=STREAM, query="alt=sse", body=body))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
# Field names that mean something, in places where they may or may not.
FIELDS = st.sampled_from(
    [
        *("contents", "role", "parts", "text", "thought", "functionCall", "function_response", "name", "args", "id"),
        *("response", "systemInstruction", "tools", "functionDeclarations", "parameters", "type", "properties"),
        *("generationConfig", "stop_sequences", "thinkingConfig", "includeThoughts", "generateContentRequest"),
    ]
)
BODIES = st.recursive(
    JSON | st.sampled_from(["user", "model", "OBJECT"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=5),
    max_leaves=25,
)


@settings(max_examples=300, deadline=None)
@given(fields=st.fixed_dictionaries({"contents": st.lists(BODIES, max_size=3) | BODIES}), more=BODIES)
def test_any_json_is_read_or_refused(fields: dict[str, Any], more: Any) -> None:
    body = json.dumps({**(more if isinstance(more, dict) else {}), **fields}).encode()
    for decode in (DIALECT.decode, DIALECT.decode_count):
        try:
            request = decode(Arrival(path=STREAM, query="alt=sse", body=body))
        except GatewayRequestError as error:
            assert error.status == 400
        else:
            assert request.messages and all(isinstance(message["content"], str) for message in request.messages)


TEXTS = st.text(max_size=20)
CALLS = st.builds(
    lambda number, name, arguments: {
        "id": f"{number:09x}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    },
    st.integers(0, 16**9 - 1),
    TEXTS.filter(bool),
    st.dictionaries(TEXTS, JSON, max_size=3),
)
REPLIES = st.builds(
    lambda content, thought, calls: {
        "role": "assistant",
        "content": content,
        **({"reasoning_content": thought} if thought else {}),
        **({"tool_calls": calls} if calls else {}),
    },
    TEXTS,
    TEXTS,
    st.lists(CALLS, max_size=3, unique_by=lambda one: one["id"]),
)


def without_ids(content: dict[str, Any]) -> dict[str, Any]:
    """As OpenCode's Google provider echoes."""
    parts: list[dict[str, Any]] = json.loads(json.dumps(content["parts"]))
    for part in parts:
        part.get("functionCall", {}).pop("id", None)
    return {**content, "parts": parts}


def through_the_sdk(content: dict[str, Any]) -> dict[str, Any]:
    """Google's Python types, with signatures as bytes in between."""
    typed = types.Content.model_validate(content)
    return json.loads(typed.model_dump_json(by_alias=True, exclude_none=True))


@settings(max_examples=200, deadline=None)
@given(message=REPLIES)
def test_any_reply_comes_back_as_what_was_said(message: Message) -> None:
    reply = ChatReply(message=message, finish_reason="stop", prompt_tokens=1, completion_tokens=1)
    request = read([HI])
    [candidate] = json.loads(DIALECT.encode(reply, request, "policy"))["candidates"]
    events = DIALECT.encode_stream(reply, request, "policy")
    chunks = [json.loads(event.removeprefix(b"data: "))["candidates"][0]["content"] for event in events]
    whole = candidate["content"]
    echoes = [[whole], chunks, [without_ids(whole)], [through_the_sdk(whole)], list(map(through_the_sdk, chunks))]
    for echo in echoes:
        _, echoed, _ = read([HI, *echo, HI]).messages
        assert stitch.meaning(echoed) == stitch.meaning(message)
        assert stitch.call_ids(echoed) == stitch.call_ids(message)
        assert echoed.get("reasoning_content") == message.get("reasoning_content")
        assert echoed["content"] == message["content"]
