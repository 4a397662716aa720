"""Adapters from the trainer's process to the engine's: a few small tensors behind the weights in the shared block."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import torch

from longrein.engines.base import AdapterSpec, AdapterTarget
from longrein.engines.local import wire
from longrein.engines.local.adapted import LORA_A, LORA_B, WEIGHT
from longrein.engines.local.manifest import Manifest, TensorPlace
from longrein.engines.local.shortage import shortage
from longrein.engines.local.weights import SharedWeights, aligned, map_block, show
from longrein.errors import EngineError

Publish = Callable[[wire.FromOwner], None]


class AdaptableWeights(SharedWeights):
    """The trainer's end; an :class:`~longrein.engines.base.AdapterReceiver`.

    ``publish`` tells the engine what lies in the block, and returns once it samples with it.
    """

    def __init__(self, manifest: Manifest, file_descriptor: int, publish: Publish) -> None:
        super().__init__(manifest, file_descriptor, lambda version: publish(wire.Swap(policy_version=version)))
        # Of our own: after the engine's end the number of the given one may be another file's.
        self._file_descriptor = os.dup(file_descriptor)
        weakref.finalize(self, os.close, self._file_descriptor)
        self._publish_adapter = publish
        self._base_is_whole = True

    def update(self, tensors: object, policy_version: int) -> None:
        """As :meth:`SharedWeights.update`. An adapter that the engine has is gone."""
        self._refuse_old(policy_version)
        named = self._checked(tensors)
        self._base_is_whole = False
        self._send(named, policy_version)
        self._base_is_whole = True

    def update_adapter(self, tensors: object, spec: AdapterSpec, policy_version: int) -> None:
        """Copy an adapter's ``tensors`` (any dtype and device) and have the engine add it to the last full weights.

        Raises:
            EngineError: modules or shapes that the engine's model does not have, an older version than the engine's
                (in all cases nothing was changed), weights that were sent in part, memory that ran out here or there,
                or an engine that is gone.
        """
        self._refuse_old(policy_version)
        if not self._base_is_whole:
            raise EngineError("the last update of the whole weights was broken off; send them again before an adapter")
        named = {name: tensor.detach() for name, tensor in cast(Mapping[str, torch.Tensor], tensors).items()}
        _refuse_other_tensors(named, spec)
        for module, target in spec.targets.items():
            self._refuse_other_target(module, target, named)
        manifest = adapter_manifest(named, self._manifest.size_bytes)
        with shortage(), torch.no_grad():
            area = map_block(manifest, self._file_descriptor)
            for name, tensor in named.items():
                area[name].copy_(tensor)
        scalings = {module + WEIGHT: target.scaling for module, target in spec.targets.items()}
        self._publish_adapter(wire.SwapAdapter(policy_version=policy_version, manifest=manifest, scalings=scalings))
        self._policy_version = policy_version

    def _refuse_other_target(self, module: str, target: AdapterTarget, named: Mapping[str, torch.Tensor]) -> None:
        name = module + WEIGHT
        tied = {*self._manifest.aliases, *self._manifest.aliases.values()}
        if name not in self._block and name not in tied:
            raise EngineError(
                f"this adapter is not of the engine's model, which has no {name}; train adapters of the same model"
            )
        if name in tied:
            raise EngineError(
                f"{name} is tied to another weight, which an adapter would change too; leave {module} out of the "
                "adapter's target modules"
            )
        a, b, weight = named[module + LORA_A], named[module + LORA_B], self._block[name]
        wanted = [(target.rank, weight.shape[-1]), (weight.shape[0], target.rank)]
        if weight.ndim != 2 or [tuple(a.shape), tuple(b.shape)] != wanted:
            raise EngineError(
                f"the adapter of {module} has shapes A {tuple(a.shape)} and B {tuple(b.shape)} and rank "
                f"{target.rank}, the engine's weight there is {tuple(weight.shape)}; A must be [rank, in] and B "
                "[out, rank]"
            )


def adapter_manifest(tensors: Mapping[str, torch.Tensor], start_bytes: int) -> Manifest:
    """Lay out an adapter as float32 behind the weights, which end at ``start_bytes``."""
    places: dict[str, TensorPlace] = {}
    offset = aligned(start_bytes)
    for name, tensor in tensors.items():
        places[name] = TensorPlace(shape=tuple(tensor.shape), dtype="float32", offset=offset)
        offset += aligned(4 * tensor.numel())
    return Manifest(tensors=places, aliases={}, size_bytes=offset)


def _refuse_other_tensors(named: Iterable[str], spec: AdapterSpec) -> None:
    wanted = {module + factor for module in spec.targets for factor in (LORA_A, LORA_B)}
    unknown, missing = set(named) - wanted, wanted - set(named)
    if unknown or missing or not wanted:
        raise EngineError(
            f"these tensors are not those of the adapter's targets: {show('unknown', unknown)}"
            f"{show('missing', missing)}pass <module>.lora_A.weight and <module>.lora_B.weight of each of its "
            f"{len(spec.targets)} targets"
        )
