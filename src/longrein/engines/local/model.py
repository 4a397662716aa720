"""The causal LM, loaded once, with the fastest way to compute it that gives the library's logits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from longrein.engines.local.choose_parts import fastest_parts
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.forward import Forward
from longrein.engines.local.fused import FusedForward, unlike_llama
from longrein.engines.local.library import LibraryForward
from longrein.engines.local.proof import Trial, disagreement
from longrein.errors import EngineError

_LOG = logging.getLogger(__name__)
_LENGTH_DEPENDENT_ROPES = ("longrope", "dynamic")
_PROVABLE_CONTEXT = 16


class LocalModel:
    """A model and how its passes are computed. Not thread-safe.

    Raises:
        EngineError: a model whose attention this engine does not compute exactly.
    """

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, context_length: int) -> None:
        self.module: torch.nn.Module = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.vocab_size: int = int(model.get_input_embeddings().weight.shape[0])
        _refuse_other_attention(model.config, context_length)
        library = LibraryForward(model)
        self.layout = library.layout
        self.forward: Forward = _fastest(model, library, context_length)

    def refresh(self) -> None:
        """The module's weights have changed in place: compute with them from now on."""
        self.forward.refresh()


def _fastest(model: Any, library: LibraryForward, context_length: int) -> Forward:
    """The fused pass if this model has one and it agrees with the library on a random text."""
    reason = unlike_llama(model)
    if context_length < _PROVABLE_CONTEXT:
        reason = f"a context of {context_length} tokens is too short to prove a faster pass"
    if not reason:
        fused = FusedForward(model, context_length, fastest_parts(model.dtype, model.device))
        vocabulary = int(model.get_input_embeddings().weight.shape[0])
        reason = disagreement(fused, library, Trial(library.layout, vocabulary, context_length))
        if not reason:
            return fused
    _LOG.warning("%s is computed by transformers' own forward, slower: %s", type(model).__name__, reason)
    return library


def load_model(config: LocalEngineConfig) -> LocalModel:
    """Load model and tokenizer from the folder.

    Raises:
        EngineError: the model has no limit of its own and none is configured, or the configured one is larger;
            attention of another kind; or weights that lack a tensor.
        OSError, ValueError: from ``transformers``, for a folder that holds no causal LM.
    """
    torch.set_num_threads(config.threads)
    model, info = cast(Any, AutoModelForCausalLM).from_pretrained(
        config.model, dtype=getattr(torch, config.dtype), output_loading_info=True
    )
    if missing := sorted(info["missing_keys"]):
        raise EngineError(
            f"the weights in {config.model} lack {missing[0]} (of {len(missing)} tensors), which would be random; "
            "config.json and weights are not of one model, or a file is incomplete"
        )
    tokenizer: Any = cast(Any, AutoTokenizer).from_pretrained(config.model)
    return LocalModel(model, tokenizer, _context_length(config, model.config))


def _context_length(config: LocalEngineConfig, model_config: Any) -> int:
    limit: int | None = getattr(model_config, "max_position_embeddings", None)
    wanted = config.context_length or limit
    if wanted is None:
        raise EngineError(f"{Path(config.model)} names no max_position_embeddings; set context_length")
    if limit is not None and wanted > limit:
        raise EngineError(f"context_length {wanted} is more than the {limit} positions of {config.model}")
    return wanted


def _refuse_other_attention(model_config: Any, context_length: int) -> None:
    kinds = set(getattr(model_config, "layer_types", None) or ["full_attention"])
    window: int | None = getattr(model_config, "sliding_window", None)
    if kinds - {"full_attention", "sliding_attention"}:
        raise EngineError(f"the embedded engine cannot run {model_config.model_type}: it has layers of {sorted(kinds)}")
    if getattr(model_config, "alibi", False):
        raise EngineError(f"the embedded engine cannot run {model_config.model_type}: it has alibi positions")
    slides = "sliding_attention" in kinds or not getattr(model_config, "layer_types", None)
    if slides and window is not None and window < context_length:
        raise EngineError(
            f"{model_config.model_type} attends over a sliding window of {window} tokens; "
            f"set context_length to at most that (it is {context_length})"
        )
    for what, limit in _limits_of_positions(model_config).items():
        if limit < context_length:
            raise EngineError(
                f"{model_config.model_type} has {what}, which this engine computes exactly within {limit} tokens only; "
                f"set context_length to at most that (it is {context_length})"
            )


def _limits_of_positions(model_config: Any) -> dict[str, int]:
    """What depends on how much is fed at once, though prompts come here in pieces -> up to which length it does not."""
    limits: dict[str, int] = {}
    rope: dict[str, Any] = getattr(model_config, "rope_parameters", None) or {}
    by_layer = [cast("dict[str, Any]", part) for part in rope.values() if isinstance(part, dict)]
    for kind in (rope, *by_layer):
        if kind.get("rope_type") in _LENGTH_DEPENDENT_ROPES:
            original = kind.get("original_max_position_embeddings") or getattr(
                model_config, "original_max_position_embeddings", model_config.max_position_embeddings
            )
            limits[f"rotary positions of type {kind['rope_type']}"] = int(original)
    if "local" in getattr(model_config, "attention_layers", ()):
        limits["a local attention that counts from the keys"] = int(model_config.window_size)
    return limits
