"""KV of conversations that wait for their next turn, and the search for the longest common prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from longrein.engines.local.kv import SavedKv
from longrein.types import I32


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """The KV of ``token_ids``, computed for a conversation."""

    conversation_id: str
    token_ids: I32
    kv: SavedKv


class PrefixStore:
    """Parked conversations, least recently used out first, within a number of tokens.

    A conversation that branched has several entries; one that was only extended has one.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._entries: OrderedDict[int, Parked] = OrderedDict()
        self._next_key = 0
        self.tokens = 0

    def __iter__(self) -> Iterator[Parked]:
        return iter(self._entries.values())

    def put(self, entry: Parked) -> None:
        """Add an entry, in place of those of its conversation that it extends."""
        size = entry.token_ids.size
        for key, old in list(self._entries.items()):
            if old.conversation_id == entry.conversation_id and (
                common_prefix(old.token_ids, entry.token_ids) == old.token_ids.size
            ):
                self._drop(key)
        if size > self._capacity_tokens:
            return
        while self.tokens + size > self._capacity_tokens:
            self._drop(next(iter(self._entries)))
        self._entries[self._next_key] = entry
        self._next_key += 1
        self.tokens += size

    def touch(self, entry: Parked) -> None:
        """Mark an entry as just used."""
        for key, other in self._entries.items():
            if other is entry:
                self._entries.move_to_end(key)
                return

    def forget(self, conversation_id: str) -> None:
        """Drop all entries of a conversation."""
        for key in [key for key, entry in self._entries.items() if entry.conversation_id == conversation_id]:
            self._drop(key)

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self.tokens = 0

    def _drop(self, key: int) -> None:
        self.tokens -= self._entries.pop(key).token_ids.size


def common_prefix(first: I32, second: I32) -> int:
    """Number of equal ids at the start of two arrays."""
    size = min(first.size, second.size)
    differs = first[:size] != second[:size]
    return int(differs.argmax()) if differs.any() else size
