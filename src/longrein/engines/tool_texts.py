"""Tools as JSON text, written once: agents send the same tools with every request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from longrein.engines.recent import Recent
from longrein.types import Tool

CAPACITY_BYTES = 4 * 1024 * 1024
"""JSON of the tools that are kept; they take some ten times as much as objects."""


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    tools: list[Tool]
    texts: dict[int, str | None]
    """``id`` of every object and list within ``tools`` -> its JSON, once it was asked for."""


_NOTHING = _Known(tools=[], texts={})


class ToolTexts:
    """The ``tojson`` filter of a template, with a memory for tools. One template at a time, in one thread."""

    def __init__(self, plain: Callable[..., str]) -> None:
        self._plain = plain
        self._recent: Recent[bytes, _Known] = Recent(CAPACITY_BYTES)
        self._current = _NOTHING

    def known(self, tools: list[Tool]) -> list[Tool]:
        """The same tools as the same objects as last time; the filter remembers these until it is given others."""
        key = msgspec.json.encode(tools)
        known = self._recent.get(key)
        if known is None:
            known = _Known(tools=tools, texts={id(value): None for value in _within(tools)})
            self._recent.put(key, known, len(key))
        # Held here, so that no other object can come by an id of theirs.
        self._current = known
        return known.tools

    def tojson(self, value: Any, *args: Any, **options: Any) -> str:
        """What the plain filter writes."""
        texts = self._current.texts
        if args or options or id(value) not in texts:
            return self._plain(value, *args, **options)
        text = texts[id(value)]
        if text is None:
            text = texts[id(value)] = self._plain(value)
        return text


def _within(value: Any) -> Iterator[Any]:
    match value:
        case dict():
            yield cast("Any", value)
            for inner in cast("dict[str, Any]", value).values():
                yield from _within(inner)
        case list():
            yield cast("Any", value)
            for inner in cast("list[Any]", value):
                yield from _within(inner)
        case _:
            pass
