"""The parts of the fused pass that are compiled loops here. Needs numba."""

from __future__ import annotations

import numpy as np
import torch

from longrein.engines.local.attend import Attend, Heads, SharedDecodeAttend, Turns
from longrein.engines.local.forward import DecodeRows
from longrein.engines.local.kernels.attention import BLOCK, scratch_floats
from longrein.engines.local.kernels.compiled import attend_loop, norm_loop
from longrein.engines.local.kernels.team import Team, the_team
from longrein.engines.local.parts import Norm, TorchNorm

_MOST_ROWS = 64
"""With more rows torch's threads norm them faster than one thread does."""
_WORTH_SHARING = 16384
"""Rows times tokens in common from which reading these once pays."""


class CompiledNorm:
    """A :class:`~longrein.engines.local.parts.Norm` in one loop, for few rows."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = weight.contiguous()
        self._size = weight.shape[0]
        self._epsilon = epsilon
        self._by_torch = TorchNorm(weight, epsilon)
        self._loop = norm_loop(weight.dtype)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`~longrein.engines.local.parts.Norm`."""
        if rows.ndim != 2 or rows.shape[0] > _MOST_ROWS or not rows.is_contiguous():
            return self._by_torch(rows)
        normed = torch.empty_like(rows)
        self._loop(
            rows.data_ptr(), self._weight.data_ptr(), normed.data_ptr(), rows.shape[0], self._size, self._epsilon
        )
        return normed


class CompiledDecodeAttend:
    """One token for each of a slab's first rows: positions, writing, and looking at just the tokens that a row has."""

    def __init__(self, rows: DecodeRows, first: int, turns: Turns, team: Team) -> None:
        self._count = rows.token_ids.size
        self._part = slice(first, first + self._count)
        self._turns = turns.of(self._part)
        self._slab = rows.slab
        self._positions = rows.positions
        keys = rows.slab.keys[0]
        self._loop = attend_loop(keys.dtype)
        self._team = team
        self._threads = self._team.size(self._count * keys.shape[1])
        self._scratch = np.empty(0, np.float32)
        self._block = np.zeros((), BLOCK)

    def run(self, layer: int, heads: Heads) -> torch.Tensor:
        """See :class:`~longrein.engines.local.attend.Attend`."""
        keys, values = self._slab.keys[layer], self._slab.values[layer]
        turning, new_values = heads.turning[self._part], heads.values[self._part]
        size = turning.shape[2]
        queries = turning.shape[1] - new_values.shape[1]
        group = queries // keys.shape[1]
        needed = self._threads * scratch_floats(group, size, self._slab.capacity)
        if self._scratch.size < needed:
            self._scratch = np.empty(needed, np.float32)
        seen = torch.empty(self._count, queries * size, dtype=keys.dtype)
        self._block[()] = (
            self._count,
            keys.shape[1],
            group,
            size,
            self._slab.capacity,
            heads.scale,
            self._threads,
            self._positions.ctypes.data,
            self._turns.cosines.data_ptr(),
            self._turns.sines.data_ptr(),
            self._scratch.ctypes.data,
            turning.data_ptr(),
            turning.stride(0),
            new_values.data_ptr(),
            new_values.stride(0),
            keys.data_ptr(),
            values.data_ptr(),
            seen.data_ptr(),
        )
        self._team.run(self._loop.address, self._block.ctypes.data, self._threads)
        return seen


class CompiledParts:
    """:class:`~longrein.engines.local.parts.Parts` by compiled loops, on the CPU."""

    def __init__(self) -> None:
        self._team = the_team()

    def norm(self, weight: torch.Tensor, epsilon: float) -> Norm:
        """See :class:`~longrein.engines.local.parts.Parts`."""
        return CompiledNorm(weight, epsilon)

    def decode(self, rows: DecodeRows, first: int, turns: Turns) -> Attend:
        """See :class:`~longrein.engines.local.parts.Parts`."""
        if rows.token_ids.size > 1 and rows.token_ids.size * rows.shared_tokens >= _WORTH_SHARING:
            return SharedDecodeAttend(rows, first, turns)
        return CompiledDecodeAttend(rows, first, turns, self._team)
