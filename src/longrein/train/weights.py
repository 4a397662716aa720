"""The weights of a model in training, under the names that a fresh copy of it has."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from longrein.errors import ConfigError


def bare_model(model: nn.Module) -> nn.Module:
    """The model without the wrappers of accelerate, DDP and ``torch.compile``; adapters stay."""
    return cast(nn.Module, extract_model_from_parallel(cast(Any, model), keep_torch_compile=False))


def named_weights(model: nn.Module) -> Mapping[str, Tensor]:
    """Parameters and saved buffers by name, each tied tensor once, without gradient and without a copy.

    The names are those of ``AutoModelForCausalLM.from_pretrained(folder)``: wrappers are taken off first.

    Raises:
        ConfigError: the model carries adapters, whose weights have other names; see
            :func:`longrein.train.adapter_weights.merged_weights`.
    """
    bare = bare_model(model)
    if hasattr(bare, "merge_adapter"):
        raise ConfigError("the model carries PEFT adapters; take merged_weights() of it, or merge_and_unload() it")
    weights = {name: parameter.detach() for name, parameter in bare.named_parameters()}
    saved = bare.state_dict()
    weights |= {name: buffer for name, buffer in bare.named_buffers() if name in saved}
    return weights
