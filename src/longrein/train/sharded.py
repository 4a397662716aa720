"""Tensors of which each rank holds a part (FSDP2), made whole. Every rank must come here, in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor
from torch.distributed.tensor import DTensor

from longrein.engines.base import AdapterReceiver, AdapterSpec, WeightReceiver
from longrein.train.ranks import Ranks


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on every rank; itself where it is not sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(tensors: Mapping[str, Tensor], *, kept: bool) -> dict[str, Tensor]:
    """Whole tensors, on the ranks that keep them; nothing on others, though they must come here too.

    A sharded tensor is on the devices of all ranks while it is put together, and on the CPU afterwards: no device has
    more than one whole. One that is not sharded is given as it is.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if kept:
            found[name] = whole(tensor).cpu() if isinstance(tensor, DTensor) else tensor
        else:
            whole(tensor)
    return found


class GatheredWeights:
    """A :class:`~longrein.engines.base.WeightReceiver` that hands on whole tensors, on rank 0."""

    def __init__(self, receiver: WeightReceiver, ranks: Ranks) -> None:
        self._receiver = receiver
        self._ranks = ranks

    def update(self, tensors: object, policy_version: int) -> None:
        """See :class:`~longrein.engines.base.WeightReceiver`."""
        self._receiver.update(_on_first(tensors, self._ranks), policy_version)


class GatheredAdapters:
    """An :class:`~longrein.engines.base.AdapterReceiver` that hands on whole tensors, on rank 0."""

    def __init__(self, receiver: AdapterReceiver, ranks: Ranks) -> None:
        self._receiver = receiver
        self._ranks = ranks

    def update(self, tensors: object, policy_version: int) -> None:
        """See :class:`GatheredWeights`."""
        self._receiver.update(_on_first(tensors, self._ranks), policy_version)

    def update_adapter(self, tensors: object, spec: AdapterSpec, policy_version: int) -> None:
        """See :class:`~longrein.engines.base.AdapterReceiver`."""
        self._receiver.update_adapter(_on_first(tensors, self._ranks), spec, policy_version)


class WeightsElsewhere:
    """What ranks other than 0 have for an engine."""

    def update(self, tensors: object, policy_version: int) -> None:
        """Rank 0 sends them."""


class AdaptersElsewhere:
    """What ranks other than 0 have for an engine that takes adapters."""

    def update(self, tensors: object, policy_version: int) -> None:
        """Rank 0 sends them."""

    def update_adapter(self, tensors: object, spec: AdapterSpec, policy_version: int) -> None:
        """Rank 0 sends them."""


def over_ranks(receiver: WeightReceiver, ranks: Ranks) -> WeightReceiver:
    """A receiver for every rank, of the kind that rank 0 has; only rank 0's is looked at, and only it sends."""
    if ranks.index == 0:
        ranks.from_first(isinstance(receiver, AdapterReceiver))
        if isinstance(receiver, AdapterReceiver):
            return GatheredAdapters(receiver, ranks)
        return GatheredWeights(receiver, ranks)
    takes_adapters = ranks.from_first(False)
    return (
        GatheredAdapters(AdaptersElsewhere(), ranks) if takes_adapters else GatheredWeights(WeightsElsewhere(), ranks)
    )


def _on_first(tensors: object, ranks: Ranks) -> dict[str, Tensor]:
    return gathered(cast("Mapping[str, Tensor]", tensors), kept=ranks.index == 0)
