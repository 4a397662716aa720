"""One forward pass over the batch: what it is given, and what every way to compute it promises."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from longrein.engines.local.kv import Place, Slab
from longrein.types import I32


class DecodeRows(msgspec.Struct, frozen=True, kw_only=True):
    """One new token for each of the first ``n`` rows of a slab."""

    slab: Slab
    token_ids: I32
    """int32 ``[n]``."""
    positions: NDArray[np.int64]
    """int64 ``[n]``: tokens of each row that have KV; the new one's goes there."""
    shared_tokens: int
    """Tokens at their start whose KV is the same in all rows, copies of one."""

    @property
    def length(self) -> int:
        """Tokens of the longest row after this pass."""
        return int(self.positions.max()) + 1


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Some more tokens of one prompt, which only need their KV."""

    place: Place
    token_ids: I32
    """int32 ``[tokens]``."""
    start: int
    """Tokens of the row that have KV."""

    @property
    def length(self) -> int:
        """Tokens of the row after this pass."""
        return self.start + self.token_ids.size


class Forward(Protocol):
    """A way to compute a pass. Writes the KV of all tokens it is given."""

    name: str

    def run(self, decodes: list[DecodeRows], pieces: list[Piece]) -> torch.Tensor:
        """Next-token logits of the decoded rows, float32 ``[n, vocab]``, in the order given."""
        ...

    def refresh(self) -> None:
        """The module's weights have changed in place."""
        ...
