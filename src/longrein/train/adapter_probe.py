"""Adapters of a run's own form with numbers in them, to see what an engine makes of such."""

# torch is partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from longrein.engines.base import AdapterSpec
from longrein.errors import ConfigError
from longrein.train.adapter_weights import adapter_update
from longrein.train.adapters import with_adapters

STRENGTH = 0.5
"""The standard deviation of what is added to a weight, in that of the weight itself: the logits move by as much."""


class AdapterProbe(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter, and what the weights become with it."""

    tensors: dict[str, Tensor]
    spec: AdapterSpec
    merged: dict[str, Tensor]
    """Whole weights, under the names of the weights that were given."""


def adapter_probe(folder: str, peft_config: Any, weights: Mapping[str, Tensor]) -> AdapterProbe:
    """An adapter for a folder's model, on the modules that ``peft_config`` names, of its rank and scaling.

    Args:
        folder: of the model.
        peft_config: as of :func:`~longrein.train.adapters.lora_config`.
        weights: of the model, by name.

    Raises:
        ConfigError: the folder is none of a causal LM, lacks a tensor, or such adapters cannot be trained on it.
    """
    try:
        with torch.device("meta"):
            model = cast(nn.Module, AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is not the folder of a causal LM: {error}") from error
    shapes = adapter_update(with_adapters(model, peft_config, seed=0))
    random = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}
    merged = dict(weights)
    for module, target in shapes.spec.targets.items():
        name = f"{module}.weight"
        if name not in weights:
            raise ConfigError(f"{folder} has no tensor {name}, which is to be adapted; save the model again")
        a = torch.randn(shapes.tensors[f"{module}.lora_A.weight"].shape, generator=random)
        b = torch.randn(shapes.tensors[f"{module}.lora_B.weight"].shape, generator=random)
        weight = weights[name].float()
        b *= STRENGTH * float(weight.std()) / (target.scaling * math.sqrt(target.rank))
        tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        merged[name] = (weight + target.scaling * (b @ a)).to(weights[name].dtype)
    return AdapterProbe(tensors=tensors, spec=shapes.spec, merged=merged)
