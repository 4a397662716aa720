"""A completion as a message: what a parser made of it, as far as that can be passed on.

A model samples anything. Whatever a parser cannot read, or what cannot be written as JSON in UTF-8 for the agent,
is content, never an error.
"""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
from renderers.base import ParsedResponse, ParsedToolCall

from longrein.engines.tool_parsers import MAX_NESTING, nested_within

PARSER_FAULTS = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError),
)
"""What parsers raise on text that nobody foresaw (third-party code, so a wide net)."""


class ParsedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call as the model wrote it."""

    name: str
    arguments: str
    """A JSON object, as text that UTF-8 can encode, nested at most ``MAX_NESTING`` deep."""
    native_id: str = ""
    """The id that the model sampled, in formats that have one (Kimi K2)."""


class ParsedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A completion as a message. A call that cannot be read stays visible in ``content``."""

    content: str
    reasoning_content: str
    tool_calls: tuple[ParsedCall, ...]


def as_reply(parsed: ParsedResponse, *, offered: bool) -> ParsedReply:
    """What a parser found. Without tools ``offered`` nothing is taken for a call.

    Raises:
        UnicodeEncodeError: text that is none, such as half a surrogate pair.
    """
    read = [(call.raw, _as_call(call) if offered else None) for call in parsed.tool_calls]
    content = "".join([parsed.content, *(raw for raw, call in read if call is None)])
    reasoning = parsed.reasoning_content or ""
    f"{content}{reasoning}".encode()
    return ParsedReply(
        content=content, reasoning_content=reasoning, tool_calls=tuple(call for _, call in read if call is not None)
    )


def as_content(text: str) -> ParsedReply:
    """A completion that no parser can read."""
    return ParsedReply(content=text, reasoning_content="", tool_calls=())


def _as_call(call: ParsedToolCall) -> ParsedCall | None:
    name, arguments = cast(Any, call.name), cast(Any, call.arguments)
    if not (isinstance(name, str) and name and isinstance(arguments, dict) and nested_within(arguments, MAX_NESTING)):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        f"{name}{text}".encode()
    except (ValueError, TypeError):
        return None
    native_id = cast(Any, call.id)
    return ParsedCall(name=name, arguments=text, native_id=native_id if isinstance(native_id, str) else "")
