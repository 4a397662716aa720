"""The tensors of an adapted model: its adapters, its own weights, and both merged. None changes the model.

Where each rank holds a part of them (FSDP2), so does what is returned, and every rank must come here.
"""

# peft, torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary

import msgspec
import torch
from torch import Tensor, nn

from longrein.engines.base import AdapterSpec, AdapterTarget
from longrein.train.sharded import whole
from longrein.train.weights import bare_model, named_weights

DIGESTED_VALUES = 1024
"""Of each tensor, evenly spaced."""

_DIGESTS: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


class LoraFactors(msgspec.Struct, frozen=True, kw_only=True):
    """The adapter of one module: its weight is ``weight + scaling * b @ a``."""

    module: str
    """Path in the bare model."""
    weight: Tensor
    """``[out, in]`` (``[in, out]``, ``[vocabulary, hidden]`` for layers that keep it so), of the base."""
    a: Tensor
    """``[rank, weight.shape[1]]``, without gradient."""
    b: Tensor
    """``[weight.shape[0], rank]``, without gradient."""
    scaling: float

    def merged(self) -> Tensor:
        """A fresh tensor, in the wider of the two dtypes."""
        dtype = torch.promote_types(self.weight.dtype, self.a.dtype)
        return self.weight.to(dtype) + self.scaling * (self.b.to(dtype) @ self.a.to(dtype))


class AdapterUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What :meth:`~longrein.engines.base.AdapterReceiver.update_adapter` takes."""

    tensors: dict[str, Tensor]
    spec: AdapterSpec


def adapter_update(model: nn.Module) -> AdapterUpdate:
    """The adapters of a ``PeftModel``, which may be wrapped; views, not copies."""
    tensors: dict[str, Tensor] = {}
    targets: dict[str, AdapterTarget] = {}
    for factors in _factors(_base_of(model)):
        tensors[f"{factors.module}.lora_A.weight"] = factors.a
        tensors[f"{factors.module}.lora_B.weight"] = factors.b
        targets[factors.module] = AdapterTarget(rank=factors.a.shape[0], scaling=factors.scaling)
    return AdapterUpdate(tensors=tensors, spec=AdapterSpec(targets=targets))


def base_weights(model: nn.Module) -> Mapping[str, Tensor]:
    """What :func:`~longrein.train.weights.named_weights` gives of the model without its adapters; no copies."""
    base = _base_of(model)
    adapted = {factors.module for factors in _factors(base)}
    weights: dict[str, Tensor] = {}
    for name, tensor in named_weights(base).items():
        module, found, rest = name.partition(".base_layer.")
        if found and module in adapted:
            weights[f"{module}.{rest}"] = tensor
        elif name.partition(".lora_")[0] not in adapted:
            weights[name] = tensor
    return weights


def merged_weights(model: nn.Module) -> Mapping[str, Tensor]:
    """The same with the adapters added: fresh tensors for the modules that are adapted, no copies of the others."""
    merged = {f"{factors.module}.weight": factors.merged() for factors in _factors(_base_of(model))}
    return {**base_weights(model), **merged}


def adapter_settings(model: nn.Module) -> dict[str, Any]:
    """What adapters on disk mean nothing without, as JSON: their scalings and a digest of the base's weights."""
    scalings = sorted({factors.scaling for factors in _factors(_base_of(model))})
    return {"lora_scalings": scalings, "base_weights": base_digest(model)}


def base_digest(model: nn.Module) -> str:
    """Of the base's weights. They do not train, so it is made once for each ``PeftModel``.

    First called before weights are sharded, it never puts them together.
    """
    bare = bare_model(model)
    if bare not in _DIGESTS:
        _DIGESTS[bare] = _digest(base_weights(bare))
    return _DIGESTS[bare]


def _digest(weights: Mapping[str, Tensor]) -> str:
    sha = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        # Training that changed a tensor changed nearly all of it.
        step = max(1, tensor.numel() // DIGESTED_VALUES)
        values = whole(tensor).flatten()[::step].to("cpu", torch.float64)
        sha.update(name.encode() + values.numpy().tobytes())
    return sha.hexdigest()[:16]


def _base_of(model: nn.Module) -> nn.Module:
    return cast(nn.Module, cast(Any, bare_model(model)).get_base_model())


def _factors(base: nn.Module) -> Iterator[LoraFactors]:
    from peft.tuners.lora import Embedding, LoraLayer

    for path, module in base.named_modules():
        if isinstance(module, LoraLayer):
            layer = cast(Any, module)
            (name,) = layer.active_adapters
            if isinstance(module, Embedding):
                a, b, stored_transposed = layer.lora_embedding_A[name], layer.lora_embedding_B[name], True
            else:
                a, b, stored_transposed = layer.lora_A[name].weight, layer.lora_B[name].weight, layer.fan_in_fan_out
            a, b = a.detach(), b.detach()
            if stored_transposed:
                a, b = b.T, a.T
            weight = layer.get_base_layer().weight.detach()
            yield LoraFactors(module=path, weight=weight, a=a, b=b, scaling=float(layer.scaling[name]))
