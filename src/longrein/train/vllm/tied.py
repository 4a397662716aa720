"""Weights that a model has under two names, such as a head that is its embeddings.

vLLM on a CPU holds a tied head as a copy of its own, and a reload gives it nothing unless the head's name is among the
tensors (seen with 0.32.0: the head kept the old weights). So tied weights are sent under every name.
"""

# transformers is partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from longrein.errors import ConfigError

Tied = Mapping[str, str]
"""Second name -> the name under which the tensor comes."""


def tied_names(model: nn.Module) -> Tied:
    """Those of a bare model; adapters may be on it."""
    base = cast(nn.Module, cast(Any, model).get_base_model()) if hasattr(model, "get_base_model") else model
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in base.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            tied[name] = known
    return tied


def tied_names_of(model: str) -> Tied:
    """Those of a folder or hub id, from its configuration alone.

    Raises:
        ConfigError: it is not that of a causal LM.
    """
    try:
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model} is not the folder of a causal LM: {error}") from error
    return tied_names(cast(nn.Module, built))


def under_every_name(tensors: Mapping[str, Tensor], tied: Tied) -> dict[str, Tensor]:
    """The same tensors, tied ones under each of their names; no copies."""
    found = dict(tensors)
    for alias, name in tied.items():
        if name in found:
            found[alias] = found[name]
        elif alias in found:
            found[name] = found[alias]
    return found
