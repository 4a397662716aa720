"""Parts of the fused pass that can be computed in more ways than one."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from longrein.engines.local.attend import Attend, Turns, decode_attend
from longrein.engines.local.forward import DecodeRows


class Norm(Protocol):
    """RMS norm over the last dimension."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows normed, as a copy."""
        ...


class Parts(Protocol):
    """How norms and the attention of decoded rows are computed."""

    def norm(self, weight: torch.Tensor, epsilon: float) -> Norm:
        """An RMS norm whose result is multiplied by ``weight``."""
        ...

    def decode(self, rows: DecodeRows, first: int, turns: Turns) -> Attend:
        """Attention of rows that decode, tokens ``first..`` of the pass, whose rotary positions are ``turns``."""
        ...


class TorchNorm:
    """A :class:`Norm` by torch."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = weight
        self._shape = tuple(weight.shape)
        self._epsilon = epsilon

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`Norm`."""
        return functional.rms_norm(rows, self._shape, self._weight, self._epsilon)


class TorchParts:
    """:class:`Parts` by torch's operators, on any device."""

    def norm(self, weight: torch.Tensor, epsilon: float) -> Norm:
        """See :class:`Parts`."""
        return TorchNorm(weight, epsilon)

    def decode(self, rows: DecodeRows, first: int, turns: Turns) -> Attend:
        """See :class:`Parts`."""
        return decode_attend(rows, first, turns)
