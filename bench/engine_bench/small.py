"""The demo policy: a random llama of 5M parameters, on disk, with a tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from step_bench.cases import SMALL
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast


def save_small(folder: Path) -> Path:
    """Write it; returns the folder."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SMALL)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(SMALL["vocab_size"])}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", pad_token="w0").save_pretrained(folder)
    return folder
