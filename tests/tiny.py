"""Tiny real models and a tiny real tokenizer, made in a second, for tests that need both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

DATA = Path(__file__).parent / "data"
CHATML = (DATA / "chatml_tools.jinja").read_text()
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 259 tokens (256 bytes and three specials) with a ChatML template that knows tools."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token="<|endoftext|>"
    )
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.chat_template = template
    return fast


def config(family: str, **overrides: Any) -> Any:
    """A two-layer config of a model family: ``llama``, ``qwen2``, ``qwen3``, ``gpt_neox``, ``phi``."""
    from transformers import AutoConfig

    small = {
        "vocab_size": 264,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if family == "gpt_neox":
        del small["num_key_value_heads"]
    return AutoConfig.for_model(family, **{**small, **overrides})


def save_model(folder: Path, family: str = "llama", seed: int = 0, **overrides: Any) -> Path:
    """Write a random model of a family with the tokenizer above; returns the folder."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(family, **overrides))
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
