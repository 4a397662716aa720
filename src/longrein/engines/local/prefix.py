"""The prefix cache: KV of conversations that wait for their next turn, and of prompts that others will share.

Two kinds of things are kept, least recently used out first, within one number of tokens:

- A **block** is the KV of 64 prompt tokens (the last of a prompt may hold fewer) that follow upon certain others. Any
  request whose prompt begins with the same tokens starts from it. While one request is in
  flight it is computed in a pass of its own shape, from nothing but such blocks, so what it holds does not depend on
  who computed it, or on what was cached then; beside others it may differ in the last bits.
- A **conversation** is all it has KV of, sampled tokens too: its blocks, and what is its own.

So a cold cache and a warm one give the same bits, where never more than one request was in flight:
docs/run-directory.md.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from longrein.engines.local.kv import SavedKv
from longrein.types import I32

BLOCK_TOKENS = 64
ROOT = 0
"""What the first block of a prompt follows upon."""


class Chunk:
    """Some tokens' KV, and how many kept things have it."""

    def __init__(self, kv: SavedKv, size: int) -> None:
        self.kv = kv
        self.size = size
        self.holders = 0


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The first tokens of a chunk."""

    chunk: Chunk
    length: int


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A block in the cache. Its number is what the next one follows upon."""

    number: int
    chunk: Chunk


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in the cache, as it was when a completion ended."""

    conversation_id: str
    token_ids: I32
    spans: tuple[Span, ...]
    """In order; they cover ``token_ids``."""
    block_tokens: int
    """Tokens at its start that lie in blocks; what follows is its own."""
    policy_version: int
    """Oldest weights that computed any of it."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is cached of a conversation's own tokens."""

    spans: tuple[Span, ...]
    length: int
    block_tokens: int
    policy_version: int


_Key = tuple[int, bytes] | int

NOTHING = Known(spans=(), length=0, block_tokens=0, policy_version=0)


class PrefixStore:
    """Blocks and conversations."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._kept: OrderedDict[_Key, Block | Conversation] = OrderedDict()
        self._conversations: dict[str, dict[int, Conversation]] = {}
        self._numbers = itertools.count(ROOT + 1)
        self.tokens = 0
        """Tokens whose KV is kept, shared ones once."""

    def resume(self, conversation_id: str, prompt_ids: I32) -> Known:
        """The longest start of a prompt that goes beyond the blocks of its own conversation."""
        own = self._conversations.get(conversation_id, {})
        lengths = {key: common_prefix(kept.token_ids, prompt_ids) for key, kept in own.items()}
        key = max(lengths, key=lambda key: lengths[key], default=None)
        if key is None or lengths[key] <= own[key].block_tokens:
            return NOTHING
        self._kept.move_to_end(key)
        return Known(
            spans=_cut(own[key].spans, lengths[key]),
            length=lengths[key],
            block_tokens=own[key].block_tokens,
            policy_version=own[key].policy_version,
        )

    def follow(self, number: int, token_ids: I32) -> list[Block]:
        """The blocks that hold the start of ``token_ids``, which follow upon block ``number``."""
        keys: list[_Key] = []
        blocks: list[Block] = []
        for start in range(0, token_ids.size, BLOCK_TOKENS):
            key = (number, token_ids[start : start + BLOCK_TOKENS].tobytes())
            block = self._kept.get(key)
            if not isinstance(block, Block):
                break
            keys.append(key)
            blocks.append(block)
            number = block.number
        # The first is used last: what a block follows upon outlives it.
        for key in reversed(keys):
            self._kept.move_to_end(key)
        return blocks

    def publish(self, number: int, token_ids: I32, kv: SavedKv) -> Block:
        """Keep a block that follows upon block ``number``; returns it, or its like that was there already."""
        key = (number, token_ids.tobytes())
        there = self._kept.get(key)
        if isinstance(there, Block):
            return there
        block = Block(number=next(self._numbers), chunk=Chunk(kv, token_ids.size))
        self._keep(key, block)
        return block

    def put(self, conversation: Conversation) -> None:
        """Keep a conversation, in place of what it extends."""
        for key, old in list(self._conversations.get(conversation.conversation_id, {}).items()):
            if common_prefix(old.token_ids, conversation.token_ids) == old.token_ids.size:
                self._drop(key)
        if conversation.token_ids.size <= self._capacity_tokens:
            self._keep(next(self._numbers), conversation)

    def forget(self, conversation_id: str) -> None:
        """Drop a conversation. Its blocks stay as long as they are of use to others."""
        for key in list(self._conversations.get(conversation_id, {})):
            self._drop(key)

    def drop_blocks(self) -> None:
        """Share no block with anybody any more; conversations keep theirs."""
        for key in [key for key, kept in self._kept.items() if isinstance(kept, Block)]:
            self._drop(key)

    def clear(self) -> None:
        """Drop everything."""
        for key in list(self._kept):
            self._drop(key)

    def _keep(self, key: _Key, kept: Block | Conversation) -> None:
        self._kept[key] = kept
        if isinstance(kept, Conversation) and isinstance(key, int):
            self._conversations.setdefault(kept.conversation_id, {})[key] = kept
        for chunk in _chunks(kept):
            self.tokens += chunk.size if chunk.holders == 0 else 0
            chunk.holders += 1
        while self.tokens > self._capacity_tokens:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        kept = self._kept.pop(key)
        if isinstance(kept, Conversation) and isinstance(key, int):
            own = self._conversations[kept.conversation_id]
            del own[key]
            if not own:
                del self._conversations[kept.conversation_id]
        for chunk in _chunks(kept):
            chunk.holders -= 1
            self.tokens -= chunk.size if chunk.holders == 0 else 0


def common_prefix(first: I32, second: I32) -> int:
    """Number of equal ids at the start of two arrays."""
    size = min(first.size, second.size)
    differs = first[:size] != second[:size]
    return int(differs.argmax()) if differs.any() else size


def shared_tokens(rows: Sequence[Sequence[Span]]) -> int:
    """Tokens at their start that all rows took from the same whole chunks."""
    shared = 0
    for spans in zip(*rows, strict=False):
        first = spans[0]
        if any(span.chunk is not first.chunk or span.length != first.length for span in spans):
            break
        shared += first.length
    return shared


def _chunks(kept: Block | Conversation) -> Sequence[Chunk]:
    return [kept.chunk] if isinstance(kept, Block) else [span.chunk for span in kept.spans]


def _cut(spans: tuple[Span, ...], length: int) -> tuple[Span, ...]:
    """The spans of the first ``length`` tokens."""
    cut: list[Span] = []
    for span in spans:
        taken = min(span.length, length)
        if taken:
            cut.append(Span(chunk=span.chunk, length=taken))
        length -= taken
    return tuple(cut)
