"""A tiny model that works in an agent: it writes ``solution.py`` right, or wrong, or says that it is done.

Its tokenizer has a token for each of these, and its weights make them likely after the generation prompt, whatever came
before; so the reward of its rollouts varies, and training can change it. All else about it is an ordinary causal LM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests import tiny

REPO = Path(__file__).parents[2]
CONTEXT = 32768
HIDDEN = 64
LIKELY = 1.7
"""Times the square root of the width: the logit of what the model wants to say."""


def _writes(body: str) -> str:
    arguments = {"filePath": "/workdir/solution.py", "content": f"def add(a, b):\n    return {body}\n"}
    return "<tool_call>\n" + json.dumps({"name": "write", "arguments": arguments}) + "\n</tool_call>"


SAYS = (_writes("a + b"), _writes("a - b"), "I am done.")


def save_coder(folder: Path) -> Path:
    """Write the model; returns the folder."""
    tokenizer = _tokenizer()
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": HIDDEN, "max_position_embeddings": CONTEXT}
    config = tiny.config("llama", **sizes, num_hidden_layers=1, tie_word_embeddings=False)
    model = AutoModelForCausalLM.from_config(config)
    says = tokenizer.convert_tokens_to_ids(list(SAYS))
    generation = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=True)
    before = tokenizer.encode(generation, add_special_tokens=False) if isinstance(generation, str) else generation
    last = (before["input_ids"] if hasattr(before, "keys") else before)[-1]
    with torch.no_grad():
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        # Direction 0: the model is about to speak. Direction 1: it has spoken.
        embedding[:, :2] = 0
        embedding[last] = torch.eye(HIDDEN)[0]
        embedding[says] = torch.eye(HIDDEN)[1]
        head[:, :2] = 0
        head[says, 0] = LIKELY
        head[tokenizer.eos_token_id, 1] = LIKELY
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE learned from this repository: an agent's long prompt must fit."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=tiny.SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_texts(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token="<|endoftext|>"
    )
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    fast.add_tokens([AddedToken(text, normalized=False) for text in SAYS])
    fast.chat_template = tiny.CHATML
    return fast


def _texts() -> Iterator[str]:
    for page in sorted((REPO / "docs").glob("*.md")):
        yield page.read_text(encoding="utf-8")
