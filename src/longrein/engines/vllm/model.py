"""What a model's folder says of it, for comparison with what a server serves."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from longrein.errors import EngineError

PROBE = 'Longrein: naïve <|im_start|>42\n\t{"a": [1.5]}</s><think>'


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model."""

    model: str
    vocab_size: int
    probe_ids: tuple[int, ...]
    """The ids of ``PROBE``, special tokens read as such and none added."""


def model_facts(model: str) -> ModelFacts:
    """Read a model's configuration and tokenizer.

    Raises:
        EngineError: it has none, or none that can be read.
    """
    # Where torch is installed, it comes along: not before it is needed.
    import transformers

    try:
        config = cast(Any, transformers.AutoConfig.from_pretrained(model))  # pyright: ignore[reportUnknownMemberType] - untyped
        tokenizer = cast(Any, transformers.AutoTokenizer.from_pretrained(model))  # pyright: ignore[reportUnknownMemberType] - untyped
    except (OSError, ValueError) as error:
        raise EngineError(f"{model} cannot be compared with what the vLLM server serves: {error}") from error
    ids = tokenizer.encode(PROBE, add_special_tokens=False)
    return ModelFacts(model=model, vocab_size=int(config.get_text_config().vocab_size), probe_ids=tuple(ids))
