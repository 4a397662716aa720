"""Compare conversations by meaning, so that an agent's echo of our own answer is recognised.

Agents re-serialise arguments, turn null into "", trim or drop reasoning, and wrap text in parts (the dialect has
undone that last one already). None of this changes what was said.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, cast

import msgspec

from longrein.types import Message, Tool

_ENCODER = msgspec.json.Encoder(order="sorted")


def meaning(message: Message) -> bytes:
    """A digest of what a message says. Tool-call ids and reasoning do not count, nor how arguments are written."""
    content: str = message.get("content") or ""
    said: dict[str, Any] = {"role": message["role"], "name": message.get("name") or ""}
    said["content"] = content.strip() if message["role"] == "assistant" else content
    functions = [call["function"] for call in _calls(message)]
    said["calls"] = [(function["name"], _parsed(function["arguments"])) for function in functions]
    return _digest(_ENCODER.encode(said))


def extend(chain: bytes, message_meaning: bytes) -> bytes:
    """The digest of a conversation with one more message."""
    return _digest(chain + message_meaning)


def with_reasoning(message_meaning: bytes, message: Message) -> bytes:
    """:func:`meaning` and trimmed reasoning: for messages that are not echoes of our own."""
    return _digest(message_meaning + reasoning(message).encode())


def tools_meaning(tools: tuple[Tool, ...]) -> bytes:
    """A digest of a list of tools."""
    return _digest(_ENCODER.encode(tools))


def call_ids(message: Message) -> tuple[str, ...]:
    """Ids of a message's tool calls, in order."""
    return tuple(call["id"] for call in _calls(message))


def reasoning(message: Message) -> str:
    """A message's reasoning, trimmed."""
    return (message.get("reasoning_content") or "").strip()


def _calls(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def _parsed(arguments: str) -> Any:
    try:
        return _plain(msgspec.json.decode(arguments))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments


def _plain(value: Any) -> Any:
    """JavaScript writes 1.0 back as 1."""
    match value:
        case float():
            return int(value) if value.is_integer() else value
        case list():
            return [_plain(item) for item in cast("list[Any]", value)]
        case dict():
            return {key: _plain(item) for key, item in cast("dict[str, Any]", value).items()}
        case _:
            return value


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
