"""Rows whose prompts are being prefilled: what to compute of them in the next pass, and what the cache spares.

Pieces end where blocks of the prefix cache do. Of rows that lack the same block one computes it, and the others take
it from the cache: siblings of a group that come together prefill their prompt once.
"""

from __future__ import annotations

import msgspec

from longrein.engines.local.forward import Piece
from longrein.engines.local.kv import KvMemory, Slabs
from longrein.engines.local.prefix import BLOCK_TOKENS, ROOT, PrefixStore, Span
from longrein.engines.local.row import Row
from longrein.types import I32


class RowPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a row's prompt."""

    row: Row
    piece: Piece


class Prefill:
    """The rows, oldest first. Their KV lies in slabs of its own, so that rows that decode are never apart."""

    def __init__(self, memory: KvMemory, store: PrefixStore) -> None:
        self.slabs = Slabs(memory)
        self.rows: list[Row] = []
        self._store = store

    def begin(self, row: Row) -> None:
        """Take a row in, with what the cache has of its own conversation."""
        self.rows.append(row)
        self.resume(row)

    def resume(self, row: Row) -> None:
        """Load what the cache has of a row's own conversation; the row has no KV yet."""
        known = self._store.resume(row.job.conversation_id, row.job.prompt_ids[:-1])
        if known.length:
            row.block_tokens = known.block_tokens
            row.kv_version = min(row.kv_version, known.policy_version)
            for span in known.spans:
                _load(row, span)

    def drop(self, row: Row) -> None:
        """Take a row out and free its place."""
        self.rows.remove(row)
        row.place.slab.remove(row.place)

    def pieces(self, budget: int) -> list[RowPiece]:
        """What to compute in the next pass: about ``budget`` tokens in all."""
        chosen: list[RowPiece] = []
        being_computed: set[tuple[int, bytes]] = set()
        for row in self.rows:
            self._take_blocks(row)
            if budget <= 0 or row.cached == row.prefill_end:
                continue
            if row.in_blocks:
                block = (row.block, row.token_ids[row.cached : _end(row, 1)].tobytes())
                if block in being_computed:
                    continue
                being_computed.add(block)
            token_ids = row.token_ids[row.cached : _end(row, budget)]
            chosen.append(RowPiece(row=row, piece=Piece(place=row.place, token_ids=token_ids, start=row.cached)))
            budget -= token_ids.size
        return chosen

    def computed(self, pieces: list[RowPiece]) -> None:
        """The pass is done: the pieces' KV is in their rows."""
        for item in pieces:
            row, token_ids = item.row, item.piece.token_ids
            in_blocks = row.in_blocks
            row.cached += token_ids.size
            row.place.used = row.cached
            row.prefill_tokens += token_ids.size
            if in_blocks:
                self._publish(row, token_ids)
                # Published first to last, they are to be dropped last to first.
                self._store.follow(ROOT, row.token_ids[: row.block_tokens])

    @property
    def complete(self) -> list[Row]:
        """The rows that lack only their prompt's last token."""
        return [row for row in self.rows if row.cached == row.prefill_end]

    def _take_blocks(self, row: Row) -> None:
        if not row.in_blocks:
            return
        for block in self._store.follow(row.block, row.token_ids[row.cached : row.prefill_end]):
            _load(row, Span(chunk=block.chunk, length=block.chunk.size))
            row.block = block.number
            row.block_tokens = row.cached

    def _publish(self, row: Row, token_ids: I32) -> None:
        for start in range(0, token_ids.size, BLOCK_TOKENS):
            part = token_ids[start : start + BLOCK_TOKENS]
            first = row.block_tokens
            block = self._store.publish(row.block, part, row.place.save(first, first + part.size))
            row.spans.append(Span(chunk=block.chunk, length=part.size))
            row.block = block.number
            row.block_tokens += part.size
            row.kept_tokens += part.size


def _end(row: Row, budget: int) -> int:
    """Where a piece of at most ``budget`` tokens ends: at the prompt's end, or at a block's, one at least."""
    aligned = (row.cached + budget) // BLOCK_TOKENS * BLOCK_TOKENS
    next_block = (row.cached // BLOCK_TOKENS + 1) * BLOCK_TOKENS
    return min(row.prefill_end, max(aligned, next_block))


def _load(row: Row, span: Span) -> None:
    row.place.load(row.cached, span.chunk.kv, span.length)
    row.spans.append(span)
    row.cached += span.length
    row.kept_tokens += span.length
