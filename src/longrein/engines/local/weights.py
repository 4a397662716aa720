"""Weights from the trainer's process to the engine's, through one block of shared memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

import torch

from longrein.engines.local.manifest import Manifest, TensorPlace
from longrein.errors import EngineError

_ALIGNMENT_BYTES = 64
_MAX_NAMES_SHOWN = 3


class SharedWeights:
    """The trainer's end; a :class:`~longrein.engines.base.WeightReceiver`.

    ``publish`` tells the engine that the block holds a policy version, and returns once it samples with it.
    """

    def __init__(self, manifest: Manifest, file_descriptor: int, publish: Callable[[int], None]) -> None:
        self._manifest = manifest
        self._block = map_block(manifest, file_descriptor)
        self._publish = publish
        self._policy_version = 0

    def update(self, tensors: object, policy_version: int) -> None:
        """Copy ``tensors`` (``Mapping[str, torch.Tensor]``, any dtype and device) and have the engine take them.

        Every parameter and saved buffer of the model must be there, tied ones under either name.

        Raises:
            EngineError: other names or shapes, an older version than the engine's (in both cases nothing
                was changed), or an engine that is gone.
        """
        self._refuse_old(policy_version)
        self._send(self._checked(tensors), policy_version)

    def _refuse_old(self, policy_version: int) -> None:
        if policy_version < self._policy_version:
            raise EngineError(
                f"policy version {policy_version} is older than the engine's {self._policy_version}; versions only grow"
            )

    def _checked(self, tensors: object) -> dict[str, torch.Tensor]:
        named = self._named(cast(Mapping[str, torch.Tensor], tensors))
        self._refuse_other_shapes(named)
        return named

    def _send(self, named: Mapping[str, torch.Tensor], policy_version: int) -> None:
        with torch.no_grad():
            for name, tensor in named.items():
                self._block[name].copy_(tensor)
        self._publish(policy_version)
        self._policy_version = policy_version

    def _named(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        aliases = self._manifest.aliases
        named = {aliases.get(name, name): tensor for name, tensor in tensors.items()}
        unknown = named.keys() - self._block.keys()
        missing = self._block.keys() - named.keys()
        if unknown or missing:
            raise EngineError(
                "these weights are not of the engine's model: "
                f"{show('unknown', unknown)}{show('missing', missing)}pass the parameters and saved buffers "
                "of the unwrapped model, as in its state_dict()"
            )
        return named

    def _refuse_other_shapes(self, named: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in named.items():
            if tensor.shape != self._block[name].shape:
                raise EngineError(
                    f"weights of {name} have shape {tuple(tensor.shape)}, "
                    f"the engine's model has {tuple(self._block[name].shape)}; pass whole, unsharded tensors"
                )


def make_manifest(model: torch.nn.Module) -> Manifest:
    """Lay out a model's parameters and saved buffers, tied ones once, each on a cache line of its own."""
    tensors: dict[str, TensorPlace] = {}
    first_names: dict[int, str] = {}
    aliases: dict[str, str] = {}
    offset = 0
    for name, tensor in _named_tensors(model):
        first = first_names.setdefault(id(tensor), name)
        if first != name:
            aliases[name] = first
            continue
        dtype = str(tensor.dtype).removeprefix("torch.")
        tensors[name] = TensorPlace(shape=tuple(tensor.shape), dtype=dtype, offset=offset)
        offset += aligned(tensor.numel() * tensor.element_size())
    return Manifest(tensors=tensors, aliases=aliases, size_bytes=offset)


def aligned(size_bytes: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def map_block(manifest: Manifest, file_descriptor: int) -> dict[str, torch.Tensor]:
    """Views of the shared block, one a tensor; the block is made as large as the manifest says."""
    os.ftruncate(file_descriptor, manifest.size_bytes)
    memory = mmap.mmap(file_descriptor, manifest.size_bytes)
    return {name: _view(memory, place) for name, place in manifest.tensors.items()}


def load_block(model: torch.nn.Module, block: Mapping[str, torch.Tensor]) -> None:
    """Copy the shared block into a model's parameters and saved buffers."""
    with torch.no_grad():
        for name, tensor in _named_tensors(model):
            if name in block:  # a tied one is there under its first name
                tensor.copy_(block[name])


def save_block(model: torch.nn.Module, block: Mapping[str, torch.Tensor]) -> None:
    """Copy a model's parameters and saved buffers into the shared block."""
    with torch.no_grad():
        for name, tensor in _named_tensors(model):
            if name in block:
                block[name].copy_(tensor)


def _named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and saved buffers, tied ones under every name: what a checkpoint of the model holds."""
    yield from model.named_parameters(remove_duplicate=False)
    saved = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers(remove_duplicate=False) if name in saved)


def _view(memory: mmap.mmap, place: TensorPlace) -> torch.Tensor:
    dtype = cast(torch.dtype, getattr(torch, place.dtype))
    count = 1
    for size in place.shape:
        count *= size
    if count == 0:
        return torch.empty(place.shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=place.offset).reshape(place.shape)


def show(label: str, names: Iterable[str]) -> str:
    """Some of the names, for a message; nothing if there are none."""
    ordered = sorted(names)
    if not ordered:
        return ""
    more = f" and {len(ordered) - _MAX_NAMES_SHOWN} more" if len(ordered) > _MAX_NAMES_SHOWN else ""
    return f"{label} {', '.join(ordered[:_MAX_NAMES_SHOWN])}{more}; "
