"""Which operations would make the CPU wait for a GPU."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("_local_scalar_dense", "unique", "nonzero", "bincount", "masked_select", "is_nonzero", "equal.default")
"""Their results, or the shapes of these, are needed on the CPU."""


class Waits(TorchDispatchMode):
    """Notes them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in WAITING):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))
