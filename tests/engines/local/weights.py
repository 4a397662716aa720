"""Other weights for a model in this process, and the old ones back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from longrein.engines.local.model import LocalModel


def changed(model: LocalModel, seed: int) -> None:
    """Move all weights a little, in place; the scheduler has to be told."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.module.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.05)


@contextmanager
def restored(model: LocalModel) -> Iterator[None]:
    """Put the weights back at the end."""
    saved = [tensor.clone() for tensor in model.module.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, old in zip(model.module.parameters(), saved, strict=True):
                tensor.copy_(old)
        model.refresh()
