"""Tool-call parsers of our own, by name, beside those of the ``renderers`` library.

``renderers``' Hermes parser needs ``<tool_call>`` to be a token of its own. Most small models spell it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol, cast

import msgspec
from renderers.base import ParsedToolCall, ToolCallParseStatus
from renderers.parsers import TOOL_PARSERS

from longrein.errors import RenderError

HERMES_TEXT = "hermes_text"
MAX_NESTING = 64
"""Arguments nested deeper are degenerate output; nobody downstream can be expected to walk them."""
MAX_SHOWN_NESTING = 128
"""No tool or call that agents send is JSON nested as deep; whoever walks it may stand deeper in the stack than we."""
OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesText(msgspec.Struct, frozen=True, kw_only=True):
    """A reply split into what is said and what is called."""

    content: str
    """Everything outside well-formed calls. A malformed call stays here, visible."""
    calls: tuple[ParsedToolCall, ...]


def split_hermes(text: str) -> HermesText:
    """Find ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` in plain text, in linear time."""
    said: list[str] = []
    calls: list[ParsedToolCall] = []
    shown = closer = 0
    opener = text.find(OPEN)
    while opener >= 0:
        begin = opener + len(OPEN)
        closer = text.find(CLOSE, begin) if 0 <= closer < begin else closer
        if closer < 0:
            break
        call = _parse_call(text[begin:closer]) if _may_be_object(text, begin, closer) else None
        if call is not None:
            said.append(text[shown:opener])
            calls.append(call)
            shown = begin = closer + len(CLOSE)
        opener = text.find(OPEN, begin)
    content = "".join([*said, text[shown:]])
    # The newlines that templates put around calls are not something the model says.
    return HermesText(content=content if content.strip() else "", calls=tuple(calls))


_OBJECT = re.compile(r"""\s*\{(?:[^"<\\]++|"(?:[^"\\]++|\\.)*+")*+""", re.DOTALL)
"""A brace, and what may follow it in JSON: neither ``<`` nor a backslash outside of strings."""


def _may_be_object(text: str, begin: int, end: int) -> bool:
    """Whether an object could stand there, cheaply: of bodies that lie in each other at most two are looked through.

    Both look at the same openers, which end a body unless they stand in a string of its; and after the brace of the
    next opener one of the two is in a string where the other is not.
    """
    found = _OBJECT.match(text, begin)
    return found is not None and found.end() == end


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: dict[str, Any] = {}


def _parse_call(body: str) -> ParsedToolCall | None:
    try:
        call = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if not call.name or not nested_within(call.arguments, MAX_NESTING):
        return None
    raw = f"{OPEN}{body}{CLOSE}"
    return ParsedToolCall(raw=raw, name=call.name, arguments=call.arguments, status=ToolCallParseStatus.OK)


def nested_within(value: Any, levels: int) -> bool:
    """Whether objects and lists lie in each other at most ``levels`` deep."""
    inner: Iterable[Any] = ()
    match value:
        case dict():
            inner = cast("dict[str, Any]", value).values()
        case list():
            inner = cast("list[Any]", value)
        case _:
            return True
    return levels > 0 and all(nested_within(item, levels - 1) for item in inner)


class TextTokenizer(Protocol):
    """What the parser needs of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Ids to text."""
        ...


class HermesTextToolParser:
    """:func:`split_hermes` in the shape that ``renderers`` plugs in: ids in, content ids and calls out.

    Working on text makes it blind to how the tags fall on token boundaries. The content ids it returns are only
    decoded again by the caller; the sampled ids are never touched.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def extract(self, token_ids: list[int]) -> tuple[list[int], list[ParsedToolCall]]:
        """Split a completion (stop token already stripped)."""
        text = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        if OPEN not in text:
            return token_ids, []
        split = split_hermes(text)
        return self._tokenizer.encode(split.content, add_special_tokens=False), list(split.calls)


def register() -> None:
    """Make our parsers known to ``renderers`` under their names. Safe to call again."""
    TOOL_PARSERS[HERMES_TEXT] = HermesTextToolParser


def resolve(name: str) -> str:
    """The registered name for what a run file says; ``auto`` is ours.

    Raises:
        RenderError: no parser of that name.
    """
    register()
    if name == "auto":
        return HERMES_TEXT
    if name not in TOOL_PARSERS:
        known = ", ".join(sorted([*TOOL_PARSERS, "auto"]))
        raise RenderError(f"tool_parser={name!r} is unknown; choose one of: {known}")
    return name
