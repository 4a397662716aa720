"""Which tokens of a micro-batch are scored, and where. Counted on the CPU: a GPU would have to be waited for."""

# torch is partly untyped:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """``n`` trained tokens by the ``m`` positions that predict them: siblings of a fork have one position in common."""

    positions: Tensor
    """``[m]`` int64, in the flattened ``[b * t]``, ascending."""
    sources: Tensor
    """``[n]`` int64: index into ``positions``, never decreasing."""
    targets: Tensor
    """``[n]`` int64: ids of the trained tokens."""
    offsets: NDArray[np.int64]
    """``[m + 1]``: position ``i`` predicts the tokens from ``offsets[i]`` to ``offsets[i + 1]``. Stays on the CPU."""

    @classmethod
    def of(cls, predictors: NDArray[np.int64], targets: NDArray[np.int64]) -> Asked:
        """Of ``[n]`` positions, ascending, and the tokens that they predict."""
        positions, sources, counts = np.unique(predictors, return_inverse=True, return_counts=True)
        return cls(
            positions=torch.from_numpy(positions),
            sources=torch.from_numpy(sources),
            targets=torch.from_numpy(targets),
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        )

    def to(self, device: torch.device) -> Asked:
        """The same on a device."""
        return Asked(
            positions=self.positions.to(device),
            sources=self.sources.to(device),
            targets=self.targets.to(device),
            offsets=self.offsets,
        )

    def part(self, start: int, stop: int) -> Asked:
        """Of the positions from ``start`` to ``stop`` alone."""
        offsets = self.offsets[start : stop + 1]
        tokens = slice(int(offsets[0]), int(offsets[-1]))
        return Asked(
            positions=self.positions[start:stop],
            sources=self.sources[tokens] - start,
            targets=self.targets[tokens],
            offsets=offsets - offsets[0],
        )
