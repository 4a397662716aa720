"""What the loops are tried with."""

from __future__ import annotations

import numpy as np
import torch

from longrein.engines.local.attend import Heads, Turns
from longrein.engines.local.forward import DecodeRows
from longrein.engines.local.kernels.parts import CompiledDecodeAttend
from longrein.engines.local.kernels.team import the_team
from longrein.engines.local.kv import KvLayout, LayerShape, Slab

FIRST = 2
"""Tokens of the pass before those that decode."""


def filled_slab(lengths: list[int], heads: int, size: int, dtype: torch.dtype) -> Slab:
    """Random keys and values, large ones where no row may look."""
    shape = LayerShape(key_heads=heads, key_size=size, value_heads=heads, value_size=size)
    slab = Slab(KvLayout(layers=(shape,), dtype=dtype), max(lengths) + 3)
    slab.resize(len(lengths) + 1)
    for row, length in enumerate(lengths):
        slab.add()
        for tensor in (slab.keys[0], slab.values[0]):
            tensor[row].normal_()
            tensor[row, :, length:] = 100.0
    return slab


def rows_of(slab: Slab, lengths: list[int]) -> DecodeRows:
    positions = np.array([length - 1 for length in lengths], np.int64)
    return DecodeRows(slab=slab, token_ids=np.zeros(len(lengths), np.int32), positions=positions, shared_tokens=0)


def compiled(slab: Slab, lengths: list[int], turns: Turns) -> CompiledDecodeAttend:
    return CompiledDecodeAttend(rows_of(slab, lengths), FIRST, turns, the_team())


def heads_and_turns(rows: int, heads: int, group: int, size: int, dtype: torch.dtype) -> tuple[Heads, Turns]:
    tokens = FIRST + rows
    projected = torch.randn(tokens, heads * (group + 2), size, dtype=dtype)
    both = Heads(turning=projected[:, : -heads or None], values=projected[:, -heads:], scale=size**-0.5)
    angles = torch.rand(tokens, 1, size) * 6
    signs = torch.tensor([-1.0, 1.0]).repeat_interleave(size // 2)
    return both, Turns(cosines=angles.cos().to(dtype), sines=(angles.sin() * signs).to(dtype))
