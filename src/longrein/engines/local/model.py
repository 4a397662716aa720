"""The causal LM: loaded once, called for a prefill of one row or one decode step of all rows."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedTokenizerBase

from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.kv import LayerShape, RowCache
from longrein.errors import EngineError
from longrein.types import I32


class LocalModel:
    """A model with its KV rows. Not thread-safe.

    Raises:
        EngineError: a model whose attention this engine does not compute exactly.
    """

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, context_length: int) -> None:
        self.module: torch.nn.Module = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.vocab_size: int = int(model.get_input_embeddings().weight.shape[0])
        _refuse_other_attention(model.config, context_length)
        parameters = inspect.signature(model.forward).parameters
        if "position_ids" not in parameters:
            raise EngineError(f"{type(model).__name__} takes no position_ids; the embedded engine needs them")
        self._model = model
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._dtype: torch.dtype = model.dtype
        self.rows = RowCache(self._layer_shapes(), self._dtype)

    def prefill(self, row: int, token_ids: I32, start: int) -> None:
        """Compute the KV of a row's tokens ``start..``; needs no logits, so the head is skipped."""
        positions = torch.arange(start, start + token_ids.size).unsqueeze(0)
        self._forward(self._model.base_model, row, _int64(token_ids).unsqueeze(0), positions)

    def decode(self, token_ids: I32, positions: NDArray[np.int64]) -> torch.Tensor:
        """Feed one token to each of the first ``n`` rows; returns next-token logits, float32 ``[n, vocab]``."""
        outputs = self._forward(self._model, 0, _int64(token_ids).unsqueeze(1), torch.as_tensor(positions).unsqueeze(1))
        return outputs.logits[:, -1].float()

    def _forward(self, module: Any, first_row: int, token_ids: torch.Tensor, positions: torch.Tensor) -> Any:
        length = int(positions.max()) + 1
        self.rows.open(first_row, positions, length)
        visible = torch.arange(length) <= positions.unsqueeze(-1)
        hidden = torch.finfo(self._dtype).min
        mask = torch.zeros(visible.shape, dtype=self._dtype).masked_fill_(~visible, hidden).unsqueeze(1)
        return module(
            input_ids=token_ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: self.rows},
        )

    @torch.inference_mode()
    def _layer_shapes(self) -> tuple[LayerShape, ...]:
        probe = DynamicCache()
        self._model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True, **{self._cache_name: probe})
        return tuple(_layer_shape(layer) for layer in probe.layers)


def load_model(config: LocalEngineConfig) -> LocalModel:
    """Load model and tokenizer from the folder.

    Raises:
        EngineError: the model has no limit of its own and none is configured, or the configured one is larger;
            or attention of another kind.
        OSError, ValueError: from ``transformers``, for a folder that holds no causal LM.
    """
    torch.set_num_threads(config.threads)
    model: Any = cast(Any, AutoModelForCausalLM).from_pretrained(config.model, dtype=getattr(torch, config.dtype))
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
    slides = "sliding_attention" in kinds or not getattr(model_config, "layer_types", None)
    if slides and window is not None and window < context_length:
        raise EngineError(
            f"{model_config.model_type} attends over a sliding window of {window} tokens; "
            f"set context_length to at most that (it is {context_length})"
        )


def _layer_shape(layer: Any) -> LayerShape:
    keys, values = layer.keys, layer.values
    return LayerShape(
        key_heads=keys.shape[1], key_size=keys.shape[3], value_heads=values.shape[1], value_size=values.shape[3]
    )


def _int64(token_ids: I32) -> torch.Tensor:
    return torch.as_tensor(token_ids.astype(np.int64))
