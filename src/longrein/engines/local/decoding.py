"""Rows that decode one token a pass, in slabs with their like."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from longrein.engines.local.forward import DecodeRows
from longrein.engines.local.kv import KvMemory, Place, Slabs, copy_row
from longrein.engines.local.prefix import shared_tokens
from longrein.engines.local.row import Row


class Decoding:
    """The rows, in the order of the next pass's logits from :meth:`inputs` on."""

    def __init__(self, memory: KvMemory) -> None:
        self.rows: list[Row] = []
        self._slabs = Slabs(memory)

    def expect(self, coming: Iterable[Row]) -> None:
        """Make room for these at once, where memory allows."""
        self._slabs.expect(row.size for row in coming)

    def place_for(self, row: Row) -> Place:
        """A place with the KV of a row that lies elsewhere yet. Raises ``ShortageError``; then nothing has happened."""
        place = self._slabs.take(row.size)
        copy_row(row.place, place)
        place.clear_rest()
        return place

    def join(self, row: Row, place: Place) -> None:
        """Take a row in; its place elsewhere is no longer its own."""
        row.place = place
        self.rows.append(row)

    def remove(self, row: Row) -> None:
        """Take a row out and free its place."""
        row.place.slab.remove(row.place)
        self.rows.remove(row)

    def inputs(self) -> list[DecodeRows]:
        """What to compute in the next pass: every row's last token, slab by slab; ``rows`` takes that order."""
        self._slabs.expect(row.cached + 1 for row in self.rows if row.cached == row.place.slab.capacity)
        for row in self.rows:
            self._slabs.grow(row.place, row.cached + 1)
        self.rows.sort(key=lambda row: (row.place.slab.capacity, row.place.index))
        decodes: list[DecodeRows] = []
        for slab in dict.fromkeys(row.place.slab for row in self.rows):
            rows = [row for row in self.rows if row.place.slab is slab]
            token_ids = np.array([row.token_ids[-1] for row in rows], dtype=np.int32)
            positions = np.array([row.cached for row in rows], dtype=np.int64)
            shared = shared_tokens([row.spans for row in rows])
            decodes.append(DecodeRows(slab=slab, token_ids=token_ids, positions=positions, shared_tokens=shared))
        return decodes

    def computed(self) -> None:
        """The pass is done: the last tokens' KV is in their rows."""
        for row in self.rows:
            if row.cached == row.prefill_end:
                row.prefill_tokens += 1
            row.cached += 1
            row.place.used = row.cached
