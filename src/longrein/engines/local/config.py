"""What the embedded engine is told once, at its start."""

from __future__ import annotations

from typing import Literal

import msgspec

from longrein.errors import ConfigError

DtypeName = Literal["float32", "bfloat16"]
StaleCache = Literal["recompute", "keep"]


class LocalEngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process.

    Raises:
        ConfigError: a count that is not positive.
    """

    model: str
    """Folder with a Hugging Face causal LM (safetensors) and its tokenizer."""
    dtype: DtypeName = "float32"
    threads: int = 1
    """torch threads of the engine process at most; fewer while other processes keep the cores busy."""
    context_length: int | None = None
    """Tokens of prompt and completion together; ``None`` takes the model's own limit."""
    max_batch: int = 32
    """Requests decoded together; the rest wait, first come first served."""
    seed: int = 0
    """Seeds the requests that bring no seed of their own."""
    batch_tokens: int = 131072
    """Tokens of KV that the requests decoded together may come to hold, rounded up to powers of two; the rest wait.
    One is always let in."""
    cache_tokens: int = 32768
    """Tokens whose KV is kept for idle conversations and shared prompts, least recently used out first, what several
    share counted once; 0 keeps none."""
    stale_cache: StaleCache = "recompute"
    """What becomes of an idle conversation's KV when the weights change: ``recompute`` drops it, so that what is
    sampled at lag 0 has exactly the logprobs of the new weights; ``keep`` keeps it for the conversation's own next
    turns, which then count as sampled over the older weights (``min_policy_version``)."""
    device: Literal["cpu"] = "cpu"

    def __post_init__(self) -> None:
        for name in ("threads", "max_batch", "batch_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"LocalEngineConfig.{name} is {getattr(self, name)}; it must be at least 1")
        if self.cache_tokens < 0:
            raise ConfigError(f"LocalEngineConfig.cache_tokens is {self.cache_tokens}; use 0 to keep no KV")
        if self.context_length is not None and self.context_length < 2:
            raise ConfigError(f"LocalEngineConfig.context_length is {self.context_length}; it must be at least 2")
