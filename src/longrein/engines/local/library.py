"""A pass by the model's own forward: any attention that takes a mask and a cache, a few calls a pass."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin

from longrein.engines.local.forward import DecodeRows, Piece
from longrein.engines.local.kv import KvLayout, LayerShape, Slab
from longrein.errors import EngineError
from longrein.types import I32


class _Window:
    """The rows and positions that one call writes, and how far it looks."""

    def __init__(self, slab: Slab, first_row: int, positions: torch.Tensor) -> None:
        rows, tokens = positions.shape
        self.slab = slab
        self.rows = slice(first_row, first_row + rows)
        self.row_index = torch.arange(first_row, first_row + rows).unsqueeze(1)
        self.positions = positions
        self.length = int(positions.max()) + 1
        self.seen = self.length - tokens


class _WindowLayer(CacheLayerMixin):
    """One layer of the cache that the model sees."""

    is_sliding = False

    def __init__(self, index: int) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  transformers leaves **kwargs untyped
        self.window: _Window | None = None
        self.is_initialized = True
        self._index = index

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write ``[rows, heads, tokens, size]`` at the window's positions; returns views up to its length."""
        window = self.window
        assert window is not None
        keys, values = window.slab.keys[self._index], window.slab.values[self._index]
        keys[window.row_index, :, window.positions] = key_states.transpose(1, 2)
        values[window.row_index, :, window.positions] = value_states.transpose(1, 2)
        return keys[window.rows, :, : window.length], values[window.rows, :, : window.length]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the shapes are known from the start."""

    def get_seq_length(self) -> int:
        """Tokens before the window's first; models ask only when no positions are passed."""
        return 0 if self.window is None else self.window.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what :meth:`update` returns."""
        return (query_length if self.window is None else self.window.length), 0

    def get_max_length(self) -> int:
        """-1: grows without a bound of its own."""
        return -1


class LibraryForward:
    """Calls the ``transformers`` model, once for each slab and once for each piece.

    Raises:
        EngineError: the model takes no ``position_ids``.
    """

    name = "library"

    def __init__(self, model: Any) -> None:
        parameters = inspect.signature(model.forward).parameters
        if "position_ids" not in parameters:
            raise EngineError(f"{type(model).__name__} takes no position_ids; the embedded engine needs them")
        self._model = model
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.layout = self._probe_layout()
        self._layers = [_WindowLayer(index) for index in range(len(self.layout.layers))]
        self._cache = Cache(layers=list(self._layers))

    def run(self, decodes: list[DecodeRows], pieces: list[Piece]) -> torch.Tensor:
        """Logits float32 ``[n, vocab]`` of the decoded rows; see :class:`~.forward.Forward`."""
        for piece in pieces:
            positions = torch.arange(piece.start, piece.length).unsqueeze(0)
            window = _Window(piece.place.slab, piece.place.index, positions)
            # The head is skipped: these tokens need no logits.
            self._call(self._model.base_model, _int64(piece.token_ids).unsqueeze(0), window)
        logits: list[torch.Tensor] = []
        for rows in decodes:
            window = _Window(rows.slab, 0, torch.as_tensor(rows.positions).unsqueeze(1))
            logits.append(self._call(self._model, _int64(rows.token_ids).unsqueeze(1), window).logits[:, -1].float())
        return torch.cat(logits) if logits else torch.empty(0, 0)

    def refresh(self) -> None:
        """The model's weights are read as they are."""

    def _call(self, module: Any, token_ids: torch.Tensor, window: _Window) -> Any:
        for layer in self._layers:
            layer.window = window
        visible = torch.arange(window.length) <= window.positions.unsqueeze(-1)
        dtype = self.layout.dtype
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min).unsqueeze(1)
        return module(
            input_ids=token_ids,
            attention_mask=mask,
            position_ids=window.positions,
            use_cache=True,
            **{self._cache_name: self._cache},
        )

    @torch.inference_mode()
    def _probe_layout(self) -> KvLayout:
        probe = DynamicCache()
        self._model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True, **{self._cache_name: probe})
        return KvLayout(layers=tuple(_layer_shape(layer) for layer in probe.layers), dtype=self._model.dtype)


def _layer_shape(layer: Any) -> LayerShape:
    keys, values = layer.keys, layer.values
    return LayerShape(
        key_heads=keys.shape[1], key_size=keys.shape[3], value_heads=values.shape[1], value_size=values.shape[3]
    )


def _int64(token_ids: I32) -> torch.Tensor:
    return torch.as_tensor(token_ids.astype(np.int64))
