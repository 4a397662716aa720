"""Ids -> text, whole and as a stream that never takes anything back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

UNFINISHED = "\ufffd"
"""What a decoder shows for a character whose bytes are not all there yet."""


class Decoder(Protocol):
    """The part of a tokenizer that is used here."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Ids to text."""
        ...


class TextRules(msgspec.Struct, frozen=True, kw_only=True):
    """What of a completion's text a client wants to see."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True

    def cut(self, text: str) -> str:
        """The text up to the first stop string, as vLLM cuts it."""
        found = first_stop(text, self.stops)
        if not found:
            return text
        return text[: text.index(found) + (len(found) if self.include_stop else 0)]


def first_stop(text: str, stops: Sequence[str]) -> str:
    """The stop string that comes first in a text; empty without one."""
    return min((stop for stop in stops if stop in text), key=text.index, default="")


class TextStream:
    """The text of a growing completion, piece by piece; the pieces joined are the text of the whole.

    A piece is held back while its last character lacks bytes, and while its end may be the start of a stop string.
    """

    def __init__(self, decoder: Decoder, rules: TextRules) -> None:
        self._decoder = decoder
        self._rules = rules
        self._ids: list[int] = []
        self._decoded = ""
        """The text of all ids up to ``_start``'s window."""
        self._start = 0
        """Ids before it are decoded for good; some before it give the rest its context."""
        self._context = 0
        self._sent = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids make certain."""
        self._ids += token_ids
        before = self._decode(self._context, self._start)
        after = self._decode(self._context, len(self._ids))
        if len(after) > len(before) and not after.endswith(UNFINISHED):
            self._decoded += after[len(before) :]
            self._context, self._start = self._start, len(self._ids)
        return self._send(len(self._decoded) - self._held_back())

    def finish(self) -> str:
        """The rest, once the completion has ended."""
        before = self._decode(self._context, self._start)
        self._decoded += self._decode(self._context, len(self._ids))[len(before) :]
        self._decoded = self._rules.cut(self._decoded)
        return self._send(len(self._decoded))

    def _send(self, end: int) -> str:
        piece = self._decoded[self._sent : end]
        self._sent = max(self._sent, end)
        return piece

    def _held_back(self) -> int:
        stops = self._rules.stops
        found = first_stop(self._decoded, stops)
        if found:
            return len(self._decoded) - self._decoded.index(found)
        longest = max(map(len, stops), default=0)
        ends = (self._decoded[-size:] for size in range(min(longest - 1, len(self._decoded)), 0, -1))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in stops)), 0)

    def _decode(self, start: int, end: int) -> str:
        return self._decoder.decode(self._ids[start:end], skip_special_tokens=self._rules.skip_special_tokens)
