"""``stop_reason``: what ended a completion, where it was not the end-of-sequence token (vLLM 0.32)."""

from __future__ import annotations

from collections.abc import Sequence

from longrein.engines.base import SampledToken
from longrein.serve.generation import Finish
from longrein.serve.served import ServedModel
from longrein.serve.text import first_stop
from longrein.types import Sampling


def stop_reason_of(
    finish: Finish | None, tokens: Sequence[SampledToken], sampling: Sampling, served: ServedModel
) -> int | str | None:
    """The stop string, or the stop token of the request; ``None`` for all else."""
    if finish != "stop":
        return None
    last = tokens[-1].token_id
    if last in sampling.stop_token_ids:
        return None if last in served.eos_token_ids else last
    text = served.tokenizer.decode([token.token_id for token in tokens], skip_special_tokens=False)
    return first_stop(text, sampling.stop) or None
