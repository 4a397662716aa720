"""What was read before is looked up by its bytes, is never another request's, and is bounded."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import Arrival, ChatRequest
from longrein.gateway.dialects.chat import ChatDialect
from longrein.gateway.known import OBJECT_BYTES, Known
from tests.gateway.rig import BASH

CALL = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Rules."},
    {"role": "user", "content": "go"},
    {"role": "user", "content": [{"type": "text", "text": "go"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "content": "1"},
    {"role": "tool", "content": "out", "tool_call_id": "a"},
]


def read(dialect: ChatDialect, messages: list[Any], tools: Any) -> ChatRequest:
    body = {"messages": messages, "temperature": 1} | ({} if tools is None else {"tools": tools})
    return dialect.decode(Arrival(path="/v1/chat/completions", body=json.dumps(body).encode()))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=5), st.sampled_from([None, [], [BASH]])),
        min_size=1,
        max_size=6,
    )
)
def test_a_dialect_with_a_memory_reads_as_one_without(asked: list[tuple[list[Any], Any]]) -> None:
    dialect = ChatDialect()
    for messages, tools in asked:
        assert read(dialect, messages, tools) == read(ChatDialect(), messages, tools)


def test_the_same_message_is_the_same_object() -> None:
    dialect = ChatDialect()
    first, second = read(dialect, MESSAGES, [BASH]), read(dialect, MESSAGES, [BASH])
    assert all(ours is theirs for ours, theirs in zip(first.messages, second.messages, strict=True))
    assert first.tools is second.tools


def test_what_is_refused_is_refused_again_and_says_where() -> None:
    dialect = ChatDialect()
    for _ in range(2):
        with pytest.raises(GatewayRequestError, match=r"\$\.messages\[1\]\.role"):
            read(dialect, [MESSAGES[0], {"role": 3}], None)
        with pytest.raises(GatewayRequestError, match="unsupported role"):
            read(dialect, [MESSAGES[0], {"role": "critic"}], None)
        with pytest.raises(GatewayRequestError, match=r"\$\.tools"):
            read(dialect, MESSAGES, [{"type": "function"}])


def test_what_is_kept_is_bounded() -> None:
    known = Known(lambda text: [text], capacity_bytes=10_000)
    for number in range(100):
        assert known.read(msgspec.Raw(b"%d" % number)) == [b"%d" % number]
        assert OBJECT_BYTES < known.kept_bytes <= 10_000
    assert known.read(msgspec.Raw(b"x" * 10_001)) == [b"x" * 10_001]
    assert known.kept_bytes <= 10_000
    known.clear()
    assert known.kept_bytes == 0 and known.read(msgspec.Raw(b"1")) == [b"1"]
