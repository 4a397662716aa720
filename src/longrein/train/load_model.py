"""A folder, hub id or loaded model -> the model and tokenizer that train, or one clear error before anything does."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pickle import UnpicklingError
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from longrein.errors import CheckpointError, ConfigError
from longrein.train.adapters import refuse_adapter_folder
from longrein.train.progress_bars import progress_bars
from longrein.train.step_config import StepConfig

ModelSource = str | PathLike[str] | nn.Module
"""Folder, hub id, model of the library, or a ``peft.PeftModel`` of one."""

UNLOADABLE = (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError, StrictDataclassError)
"""What the library raises for files that are absent, cut off, or no model it knows."""
UNREADABLE_TOKENIZER = (OSError, ValueError, KeyError)
NAMED_TENSORS = 3
"""Of those that are wrong, so many are named."""


def load_model(model: ModelSource, args: StepConfig) -> PreTrainedModel:
    """A loaded model as it is, or one from a folder or hub id in float32 (optimizers need its precision).

    Raises:
        CheckpointError: nothing loadable is there, or not every tensor of the model that ``config.json`` describes:
            the library would begin with random ones. What a file has beyond that, the library warns of.
        ConfigError: adapters are there, without their model.
    """
    if isinstance(model, nn.Module):
        # A PeftModel passes on what is asked of the model in it.
        return cast(PreTrainedModel, model)
    refuse_adapter_folder(str(model))
    options: dict[str, Any] = {"dtype": torch.float32, **(args.model_init_kwargs or {})}
    # Tensors of other shapes are told apart below, by name; the library's own error has no names.
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        with progress_bars(shown=not args.disable_tqdm):
            loaded, info = cast(Any, AutoModelForCausalLM).from_pretrained(str(model), **options)
    except UNLOADABLE as error:
        raise CheckpointError(f"model {str(model)!r} cannot be loaded as a causal LM: {error}") from error
    if problem := _lacks(info):
        raise CheckpointError(
            f"model {str(model)!r}: {problem}; config.json and weights are not of one model, or a file is incomplete"
        )
    return cast(PreTrainedModel, loaded)


def load_tokenizer(model: PreTrainedModel) -> Any:
    """The tokenizer beside a model's weights.

    Raises:
        ConfigError: the model does not say where it came from.
        CheckpointError: no tokenizer can be loaded from there.
    """
    source: str | None = model.config.name_or_path
    if not source:
        raise ConfigError("the model names no folder that its tokenizer could be loaded from; pass processing_class")
    try:
        return AutoTokenizer.from_pretrained(source)
    except UNREADABLE_TOKENIZER as error:
        raise CheckpointError(
            f"the tokenizer of model {source!r} cannot be loaded: {error!r}; put its files there, or pass "
            "processing_class"
        ) from error


def _lacks(info: Mapping[str, Any]) -> str:
    """What keeps loaded weights from being the whole model, or nothing. Tied tensors count as there."""
    missing = sorted(info["missing_keys"])
    if missing:
        return f"its weights lack {_named(missing)}"
    others = sorted(f"{name} of shape {found} and not {wanted}" for name, found, wanted in _shapes(info))
    return f"its weights have {_named(others)}" if others else ""


def _shapes(info: Mapping[str, Any]) -> list[tuple[str, list[int], list[int]]]:
    return [(name, list(found), list(wanted)) for name, found, wanted in info["mismatched_keys"]]


def _named(items: list[str]) -> str:
    more = len(items) - NAMED_TENSORS
    return ", ".join(items[:NAMED_TENSORS]) + (f" and {more} more" if more > 0 else "")
