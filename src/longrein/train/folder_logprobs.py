"""Logprobs of a completion by a saved model, computed the plainest way there is: to hold an engine against."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from longrein.errors import CheckpointError
from longrein.train.load_model import UNLOADABLE
from longrein.train.progress_bars import progress_bars
from longrein.types import F32, I32


def folder_logprobs(folder: Path, prompt_ids: I32, completion_ids: I32, temperature: float) -> F32:
    """One forward pass over prompt and completion in float32 on the CPU.

    Args:
        folder: a model that ``save_pretrained`` wrote.
        prompt_ids: int32 ``[p]``, at least one.
        completion_ids: int32 ``[n]``.
        temperature: the logits are divided by it.

    Returns:
        float32 ``[n]``, natural log.

    Raises:
        CheckpointError: the folder holds no causal LM that can be loaded.
    """
    try:
        with progress_bars(shown=False):
            model: Any = cast(Any, AutoModelForCausalLM).from_pretrained(str(folder), dtype=torch.float32)
    except UNLOADABLE as error:
        raise CheckpointError(f"model {str(folder)!r} cannot be loaded as a causal LM: {error}") from error
    ids = torch.as_tensor(np.concatenate([prompt_ids, completion_ids]).astype(np.int64)).unsqueeze(0)
    with torch.inference_mode():
        logits = model.eval()(ids).logits[0, prompt_ids.size - 1 : -1].float() / temperature
        chosen = torch.log_softmax(logits, dim=-1).gather(1, ids[0, prompt_ids.size :].unsqueeze(1))
    return cast(F32, chosen[:, 0].numpy())
