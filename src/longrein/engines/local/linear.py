"""Linear layers whose weights were laid out for the kernel once, not in each call.

On a CPU oneDNN computes ``x @ W.T`` for a few rows from weights it has reordered into its own blocks 2 to 5 times
faster than from a plain matrix (docs/engines.md, *Speed*). Reordering copies, so it is done when weights change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch.nn import functional

_ROWS_HINT = 16
"""oneDNN chooses blocks for so many rows; the same ones serve 1 to 512 rows as well."""


class Linear(Protocol):
    """``x @ W.T + b``, any rows ``[n, in]`` -> ``[n, out]``."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        ...


class PlainLinear:
    """Weights as they are."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`Linear`."""
        return functional.linear(rows, self._weight, self._bias)


class PackedLinear:
    """Weights in oneDNN's own order."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        operators = cast(Any, torch.ops.mkldnn)
        self._weight: torch.Tensor = operators._reorder_linear_weight(weight, _ROWS_HINT)
        self._bias = bias
        self._linear = operators._linear_pointwise

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """See :class:`Linear`."""
        return self._linear(rows, self._weight, self._bias, "none", [], "")


def joined(parts: Sequence[Any]) -> Linear:
    """One layer that computes several ``torch.nn.Linear`` of the same input, outputs side by side."""
    weights = [part.weight.detach() for part in parts]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    bias = None if parts[0].bias is None else torch.cat([part.bias.detach() for part in parts])
    return PackedLinear(weight, bias) if _packs(weight) else PlainLinear(weight, bias)


def _packs(weight: torch.Tensor) -> bool:
    operators: Any = getattr(torch.ops, "mkldnn", None)
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(operators, "_reorder_linear_weight"):
        return False
    return weight.dtype == torch.float32 or bool(operators._is_mkldnn_bf16_supported())
