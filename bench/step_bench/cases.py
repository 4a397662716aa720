"""Models, and the rows of a step: random ids, so that nothing is shared by chance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from longrein.types import Row

SMOLLM2 = Path(__file__).parents[2] / "models" / "smollm2"
SMALL: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": True,
}
"""5M parameters, head and embedding included."""


def small() -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SMALL))


def four_layers() -> Any:
    """SmolLM2-135M without 26 of its 30 layers."""
    if not SMOLLM2.is_dir():
        raise SystemExit(f"{SMOLLM2} is missing; run `make model` first")
    # The library tells of every weight that is left out.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(str(SMOLLM2), dtype=torch.float32, num_hidden_layers=4)


MODELS: dict[str, Callable[[], Any]] = {"5m": small, "smollm2-4": four_layers}


def siblings(random: np.random.Generator, prompt: int, own: int, vocab_size: int) -> list[Row]:
    """A group of 8 rollouts: a shared prompt, then turns of the model's and of the tool's, 3 to 2."""
    common = random.integers(0, vocab_size, prompt)
    rows: list[Row] = []
    for member in range(8):
        size = int(own * random.uniform(0.75, 1.25))
        ids = np.concatenate([common, random.integers(0, vocab_size, size)]).astype(np.int32)
        rows.append(row_of(f"m{member}", ids, _sampled(ids, prompt), random))
    return rows


def forks(random: np.random.Generator, prompt: int, own: int, vocab_size: int) -> list[Row]:
    """The same group, each member of which forks twice: after a half and after three quarters of its own tokens."""
    rows: list[Row] = []
    for item in siblings(random, prompt, own, vocab_size):
        rows.append(item)
        for fraction in (0.5, 0.75):
            start = prompt + int((item.token_ids.size - prompt) * fraction)
            ids = item.token_ids.copy()
            ids[start:] = random.integers(0, vocab_size, ids.size - start)
            rows.append(row_of(item.rollout_id, ids, _sampled(ids, start), random))
    return rows


def row_of(rollout_id: str, ids: Any, mask: Any, random: np.random.Generator) -> Row:
    return Row(
        rollout_id=rollout_id,
        group_id="g",
        token_ids=ids,
        loss_mask=mask,
        logprobs=np.where(mask, -9.0, 0.0).astype(np.float32),
        advantage=float(random.normal()),
    )


def _sampled(ids: Any, start: int) -> Any:
    """Thirty tokens of the model's, then twenty of the tool's, and so on."""
    places = np.arange(ids.size)
    return (places >= max(start, 1)) & (places % 50 < 30)


CASES: dict[str, Callable[[np.random.Generator, int], list[Row]]] = {
    "demo": lambda random, vocab: siblings(random, 200, 300, vocab),
    "2k": lambda random, vocab: siblings(random, 2048, 256, vocab),
    "forks": lambda random, vocab: forks(random, 1024, 512, vocab),
    "unshared": lambda random, vocab: siblings(random, 0, 600, vocab),
    "8k": lambda random, vocab: siblings(random, 8192, 256, vocab),
}
"""Groups of 8. ``demo``: prompt 200, own 300, the shape of the demo's rows. ``2k`` and ``8k``: such a prompt, own 256.
``forks``: prompt 1024, own 512, two forks each. ``unshared``: no prompt, own 600."""


def warm_up_rows(vocab_size: int) -> list[Row]:
    return siblings(np.random.default_rng(1), 32, 100, vocab_size)
