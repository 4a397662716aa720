"""The KV of requests: slabs of rows of one capacity, written in place.

Rows of about one length lie in one slab, so that one call attends for all of them and reads little more than it must.
A row's keys beyond its length are hidden by the attention mask. They must be finite, for NaN would come through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

import msgspec
import torch

from longrein.engines.local.shortage import ShortageError, shortage

SMALLEST_CAPACITY = 256
_GROWTH = 1.5


class LayerShape(msgspec.Struct, frozen=True, kw_only=True):
    """Heads and head sizes of one layer's keys and values."""

    key_heads: int
    key_size: int
    value_heads: int
    value_size: int


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What one token's KV consists of."""

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype


class SavedKv(msgspec.Struct, frozen=True, kw_only=True):
    """Some tokens' KV, copied out: a tensor ``[heads, tokens, size]`` a layer."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


class Place:
    """Where a request's KV lies. It moves when the request outgrows its slab, or when a row before it leaves."""

    def __init__(self, slab: Slab, index: int) -> None:
        self.slab = slab
        self.index = index
        self.used = 0
        """Tokens that are worth copying when the row moves."""

    def save(self, start: int, end: int) -> SavedKv:
        """Copy the KV of tokens ``start..end`` out."""
        slab, index = self.slab, self.index
        return SavedKv(
            keys=tuple(keys[index, :, start:end].clone() for keys in slab.keys),
            values=tuple(values[index, :, start:end].clone() for values in slab.values),
        )

    def load(self, start: int, saved: SavedKv, length: int) -> None:
        """Copy the first ``length`` saved tokens in, at ``start``."""
        slab, index = self.slab, self.index
        for mine, theirs in ((slab.keys, saved.keys), (slab.values, saved.values)):
            for rows, tokens in zip(mine, theirs, strict=True):
                rows[index, :, start : start + length] = tokens[:, :length]
        self.used = start + length

    def clear_rest(self) -> None:
        """Zero what lies beyond the used tokens: garbage of rows that were here before."""
        for rows in (*self.slab.keys, *self.slab.values):
            rows[self.index, :, self.used :].zero_()


class Slab:
    """Rows of one capacity, ``[rows, heads, capacity, size]`` a layer. Rows ``0..n-1`` are taken, the rest is room."""

    def __init__(self, layout: KvLayout, capacity: int) -> None:
        self.capacity = capacity
        self.places: list[Place] = []
        self.room = 0
        """Rows that there is memory for."""
        shapes, dtype = layout.layers, layout.dtype
        self.keys = [torch.zeros(0, shape.key_heads, capacity, shape.key_size, dtype=dtype) for shape in shapes]
        self.values = [torch.zeros(0, shape.value_heads, capacity, shape.value_size, dtype=dtype) for shape in shapes]

    def add(self) -> Place:
        """Take a row. What is in it is zero, or what was there before."""
        if self.full:
            self.resize(self.room + 1)
        place = Place(self, len(self.places))
        self.places.append(place)
        return place

    def remove(self, place: Place) -> None:
        """Give a row back; the last one moves into its room."""
        last = self.places.pop()
        if last is not place:
            copy_row(last, place)
            last.index = place.index
            self.places[place.index] = last

    @property
    def full(self) -> bool:
        """Whether another row takes more memory."""
        return len(self.places) == self.room

    def resize(self, room: int) -> None:
        """Have memory for so many rows; the rows that are taken stay."""
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                # Layer by layer, so that never more than one of them is there twice.
                new = torch.empty(room, *old.shape[1:], dtype=old.dtype)
                new[: len(self.places)] = old[: len(self.places)]
                new[len(self.places) :] = 0
                tensors[layer] = new
        self.room = room


class KvMemory:
    """All slabs, and the memory they take.

    That is at most ``bound_tokens``, unless the rows alone take more: the longest request is let in whatever its size,
    and a row that moves has two places for a moment.
    """

    def __init__(self, layout: KvLayout, bound_tokens: int) -> None:
        self._layout = layout
        self._bound_tokens = bound_tokens
        self._slabs: list[Slab] = []

    @property
    def tokens(self) -> int:
        """Tokens for whose KV there is memory."""
        return sum(slab.room * slab.capacity for slab in self._slabs)

    def slab(self, capacity: int) -> Slab:
        """A new slab without rows."""
        slab = Slab(self._layout, capacity)
        self._slabs.append(slab)
        return slab

    def widen(self, slab: Slab, coming: int) -> None:
        """Make room for one more row; within the bound for all that are ``coming``, and some more."""
        self.drop_unused()
        # Memory without rows is kept until now, so that requests that come one by one need not fault it in again.
        if self.spare_rows(slab) < 1:
            self._trim(self._slabs)
        rows = len(slab.places)
        wanted = max(rows + coming, int(rows * _GROWTH))
        slab.resize(max(rows + 1, min(slab.room + self.spare_rows(slab), wanted)))

    def drop_unused(self) -> None:
        """Give back the memory of slabs that have no rows."""
        self._trim(slab for slab in self._slabs if not slab.places)

    def spare_rows(self, slab: Slab) -> int:
        """Rows of a slab that there may be memory for beside all that there is."""
        return (self._bound_tokens - self.tokens) // slab.capacity

    @staticmethod
    def _trim(slabs: Iterable[Slab]) -> None:
        for slab in slabs:
            if not slab.full:
                slab.resize(len(slab.places))


class Slabs:
    """Slabs of capacities 256, 512, 1024, ... tokens."""

    def __init__(self, memory: KvMemory) -> None:
        self._memory = memory
        self._slabs: dict[int, Slab] = {}

    def expect(self, lengths: Iterable[int]) -> None:
        """Rows for so many tokens are about to be taken: each slab makes room for its own at once, which copies it
        once and not once a row. Where there is not the room for all, each finds its own or does not."""
        for capacity, coming in Counter(map(capacity_for, lengths)).items():
            slab = self._slab(capacity)
            if 0 < coming - (slab.room - len(slab.places)) <= self._memory.spare_rows(slab):
                with suppress(ShortageError), shortage():
                    self._memory.widen(slab, coming)

    def take(self, length: int) -> Place:
        """A row for so many tokens."""
        slab = self._slab(capacity_for(length))
        if slab.full:
            self._memory.widen(slab, 1)
        return slab.add()

    def grow(self, place: Place, length: int) -> None:
        """Make room for ``length`` tokens in a row, moving it if it must."""
        if length <= place.slab.capacity:
            return
        wider = self.take(length)
        copy_row(place, wider)
        wider.clear_rest()
        place.slab.remove(place)
        place.slab, place.index = wider.slab, wider.index
        wider.slab.places[wider.index] = place

    def _slab(self, capacity: int) -> Slab:
        if capacity not in self._slabs:
            self._slabs[capacity] = self._memory.slab(capacity)
        return self._slabs[capacity]


def capacity_for(length: int) -> int:
    """The capacity of the slab that a row of so many tokens lies in."""
    return max(SMALLEST_CAPACITY, 1 << (length - 1).bit_length())


def copy_row(source: Place, target: Place) -> None:
    """Copy a row's used tokens over another, of any slabs."""
    used = source.used
    for mine, theirs in ((target.slab.keys, source.slab.keys), (target.slab.values, source.slab.values)):
        for to, of in zip(mine, theirs, strict=True):
            to[target.index, :, :used] = of[source.index, :, :used]
    target.used = used
