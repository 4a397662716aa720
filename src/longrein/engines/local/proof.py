"""Whether two ways to compute a model agree, tried on two random texts in pieces, decoded together."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from longrein.engines.local.forward import DecodeRows, Forward, Piece
from longrein.engines.local.kv import KvLayout, Slab

_TOKENS = 100
_IDS = 64
"""Tokens are drawn of so many, or of the vocabulary if that is smaller."""
_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Difference of two tokens' logits over their spread, both as root mean squares."""


class Trial(msgspec.Struct, frozen=True):
    """What the two are tried with."""

    layout: KvLayout
    vocabulary: int
    context_length: int


@torch.inference_mode()
def disagreement(one: Forward, other: Forward, trial: Trial) -> str:
    """What differs, in words; empty if the logits agree within what the dtype's rounding explains."""
    layout = trial.layout
    length = min(_TOKENS, trial.context_length - 1)
    ids = min(_IDS, trial.vocabulary)
    ours, theirs = _logits(one, layout, length, ids), _logits(other, layout, length, ids)
    spread = theirs - theirs.mean(dim=-1, keepdim=True)
    difference = ((ours - theirs).square().sum() / spread.square().sum()).sqrt().item()
    # Not "<=": a difference that is no number must count as one.
    if difference < _TOLERANCES.get(layout.dtype, 0.1):
        return ""
    return f"the {one.name} pass gave other logits than the {other.name} one (relative difference {difference:.2g})"


def _logits(forward: Forward, layout: KvLayout, length: int, ids: int) -> torch.Tensor:
    random = np.random.default_rng(0)
    token_ids = random.integers(0, ids, (2, length), dtype=np.int32)
    common = length // 3 * 2
    token_ids[1, :common] = token_ids[0, :common]
    slab = Slab(layout, length + 1)
    places = [slab.add() for _ in range(2)]
    forward.run([], [Piece(place=places[i], token_ids=token_ids[i, :common], start=0) for i in range(2)])
    forward.run([], [Piece(place=places[0], token_ids=token_ids[0, common:-1], start=common)])
    last = np.array([token_ids[0, -1], token_ids[1, common]], dtype=np.int32)
    positions = np.array([length - 1, common], dtype=np.int64)
    ways = [DecodeRows(slab=slab, token_ids=last, positions=positions, shared_tokens=n) for n in (0, common)]
    return torch.cat([forward.run([rows], []) for rows in ways])
