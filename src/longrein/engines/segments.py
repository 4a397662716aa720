"""Text to ids in pieces, so that what was tokenised before need not be tokenised again.

A tokenizer of the ``tokenizers`` library looks for its special tokens first and tokenises what lies between them piece
by piece, each on its own. So a text may be cut before any special token that takes no whitespace with it, and the ids
of the pieces are the ids of the whole. Conversations of one run share most of their pieces: the system prompt with
its tools, and every message that was seen before.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from longrein.engines.direct import direct
from longrein.engines.recent import Recent
from longrein.engines.tool_parsers import TextTokenizer
from longrein.types import I32

CAPACITY_CHARS = 16 * 1024 * 1024
"""Characters of pieces that are kept; some 40 MB with their ids."""


class PieceTokenizer(TextTokenizer, Protocol):
    """What is used of a ``transformers`` tokenizer."""

    added_tokens_decoder: dict[int, Any]


class SegmentEncoder:
    """Text to ids, no special tokens added. Pieces seen lately are looked up."""

    def __init__(self, tokenizer: PieceTokenizer, capacity_chars: int = CAPACITY_CHARS) -> None:
        self._tokenizer = direct(tokenizer)
        self._tokens = _token_pattern(tokenizer)
        self._seams = _seams(tokenizer)
        self._recent: Recent[str, I32] = Recent(capacity_chars)

    @property
    def kept_chars(self) -> int:
        """Characters of the pieces that are kept."""
        return self._recent.weight

    def encode(self, text: str) -> I32:
        """Ids, shape ``[n]`` int32. The array may be read-only."""
        pieces = [self._piece(piece) for piece in self._cut(text)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _cut(self, text: str) -> list[str]:
        if self._tokens is None:
            return [text]
        cuts = [found.start() for found in self._tokens.finditer(text) if found.group() in self._seams]
        bounds = [0, *(cut for cut in cuts if cut), len(text)]
        return [text[begin:end] for begin, end in pairwise(bounds)]

    def _piece(self, text: str) -> I32:
        ids = self._recent.get(text)
        if ids is None:
            ids = np.asarray(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)
            # Handed out again and again: whoever writes into it must fail.
            ids.flags.writeable = False
            self._recent.put(text, ids, max(len(text), 1))
        return ids


def _token_pattern(tokenizer: PieceTokenizer) -> re.Pattern[str] | None:
    """Finds special tokens as the tokenizer does: leftmost, then longest. ``None`` where it works otherwise."""
    untyped: Any = tokenizer
    if not getattr(untyped, "is_fast", False) or getattr(untyped, "split_special_tokens", False):
        return None
    found_first = [token for token in tokenizer.added_tokens_decoder.values() if not token.normalized]
    if not found_first or any(token.single_word for token in found_first):
        return None
    return re.compile("|".join(re.escape(text) for text in sorted(map(str, found_first), key=len, reverse=True)))


def _seams(tokenizer: PieceTokenizer) -> frozenset[str]:
    """Tokens before which a text may be cut."""
    clean = [token for token in tokenizer.added_tokens_decoder.values() if not (token.normalized or token.lstrip)]
    return frozenset(map(str, clean))
