"""When a completion ends: a stop token, or text that contains a stop string."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from longrein.types import I32, Sampling

# A token is at least one byte of text, so a stop string of n bytes ends within the last n tokens; the margin keeps
# decoders that treat the first token of a text apart away from it.
_MARGIN_TOKENS = 4


class StopRule:
    """Looks at the end of a completion after each token."""

    def __init__(self, sampling: Sampling, tokenizer: PreTrainedTokenizerBase) -> None:
        self._token_ids = frozenset(sampling.stop_token_ids)
        self._strings = tuple(text for text in sampling.stop if text)
        self._tokenizer: Any = tokenizer
        self._tail_tokens = max((len(text.encode()) for text in self._strings), default=0) + _MARGIN_TOKENS

    def ends(self, completion_ids: I32) -> bool:
        """Whether the last token of a completion that had not ended before ends it."""
        if int(completion_ids[-1]) in self._token_ids:
            return True
        if not self._strings:
            return False
        tail = self._tokenizer.decode(
            completion_ids[-self._tail_tokens :].tolist(),
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        return any(text in tail for text in self._strings)
