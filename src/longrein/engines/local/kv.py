"""The KV of the running requests: one row each, left-aligned, in tensors that are written in place.

A row's keys beyond its length are garbage that the attention mask hides; they are overwritten as the row grows.
Rows 0..n-1 are always the running ones, so a decode step reads views, never copies.
"""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_LENGTH_STEP = 128
_GROWTH = 1.5


class LayerShape(msgspec.Struct, frozen=True, kw_only=True):
    """Heads and head sizes of one layer's keys and values."""

    key_heads: int
    key_size: int
    value_heads: int
    value_size: int


class SavedKv(msgspec.Struct, frozen=True, kw_only=True):
    """One row's KV, copied out: a tensor ``[heads, length, size]`` a layer."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The rows and positions that one forward pass writes, and how far it looks."""

    rows: slice
    row_index: torch.Tensor
    """int64 ``[rows, 1]``."""
    positions: torch.Tensor
    """int64 ``[rows, tokens]``."""
    length: int
    """Longest row after this pass."""


class RowLayer(CacheLayerMixin):
    """One layer's keys and values, ``[rows, heads, length, size]``."""

    is_sliding = False

    def __init__(self, shape: LayerShape, dtype: torch.dtype) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  transformers leaves **kwargs untyped
        self.key_rows = torch.zeros(0, shape.key_heads, 0, shape.key_size, dtype=dtype)
        self.value_rows = torch.zeros(0, shape.value_heads, 0, shape.value_size, dtype=dtype)
        self.window: Window | None = None
        self.is_initialized = True

    def grow(self, rows: int, length: int) -> None:
        """Make room, keeping what is there. New room is zero: hidden garbage must at least be finite."""
        self.key_rows = _grown(self.key_rows, rows, length)
        self.value_rows = _grown(self.value_rows, rows, length)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write ``[rows, heads, tokens, size]`` at the window's positions; returns views up to its length."""
        window = self.window
        assert window is not None
        self.key_rows[window.row_index, :, window.positions] = key_states.transpose(1, 2)
        self.value_rows[window.row_index, :, window.positions] = value_states.transpose(1, 2)
        return self.key_rows[window.rows, :, : window.length], self.value_rows[window.rows, :, : window.length]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the shapes are known from the start."""

    def get_seq_length(self) -> int:
        """Tokens before the window's first; models ask only when no positions are passed."""
        return 0 if self.window is None else self.window.length - self.window.positions.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what :meth:`update` returns."""
        return (query_length if self.window is None else self.window.length), 0

    def get_max_length(self) -> int:
        """-1: grows without a bound of its own."""
        return -1


class RowCache(Cache):
    """The KV rows of all layers."""

    def __init__(self, shapes: tuple[LayerShape, ...], dtype: torch.dtype) -> None:
        self._rows = [RowLayer(shape, dtype) for shape in shapes]
        self._row_capacity = 0
        self._length_capacity = 0
        super().__init__(layers=list(self._rows))

    def reserve(self, rows: int, length: int) -> None:
        """Make room for so many rows of so many tokens."""
        if rows <= self._row_capacity and length <= self._length_capacity:
            return
        if rows > self._row_capacity:
            self._row_capacity = max(rows, int(self._row_capacity * _GROWTH))
        if length > self._length_capacity:
            wanted = max(length, int(self._length_capacity * _GROWTH))
            self._length_capacity = -(-wanted // _LENGTH_STEP) * _LENGTH_STEP
        for layer in self._rows:
            layer.grow(self._row_capacity, self._length_capacity)

    def open(self, first_row: int, positions: torch.Tensor, length: int) -> None:
        """Say where the next forward pass writes: ``positions`` is int64 ``[rows, tokens]``."""
        rows = slice(first_row, first_row + positions.shape[0])
        row_index = torch.arange(rows.start, rows.stop).unsqueeze(1)
        window = Window(rows=rows, row_index=row_index, positions=positions, length=length)
        for layer in self._rows:
            layer.window = window

    def save(self, row: int, length: int) -> SavedKv:
        """Copy a row out."""
        return SavedKv(
            keys=tuple(layer.key_rows[row, :, :length].clone() for layer in self._rows),
            values=tuple(layer.value_rows[row, :, :length].clone() for layer in self._rows),
        )

    def load(self, row: int, saved: SavedKv, length: int) -> None:
        """Copy the first ``length`` tokens of a saved row in."""
        for layer, keys, values in zip(self._rows, saved.keys, saved.values, strict=True):
            layer.key_rows[row, :, :length] = keys[:, :length]
            layer.value_rows[row, :, :length] = values[:, :length]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of one row over another."""
        for layer in self._rows:
            layer.key_rows[target, :, :length] = layer.key_rows[source, :, :length]
            layer.value_rows[target, :, :length] = layer.value_rows[source, :, :length]

    def clear(self, row: int) -> None:
        """Zero a row, so that what is not finite in it cannot reach the row's next owner through the mask."""
        for layer in self._rows:
            layer.key_rows[row].zero_()
            layer.value_rows[row].zero_()


def _grown(old: torch.Tensor, rows: int, length: int) -> torch.Tensor:
    new = torch.zeros(rows, old.shape[1], length, old.shape[3], dtype=old.dtype)
    new[: old.shape[0], :, : old.shape[2]] = old
    return new
