"""A fast tokenizer without what ``transformers`` does around it, which costs as much as a short text itself."""

from __future__ import annotations

from typing import Any, cast

from longrein.engines.tool_parsers import TextTokenizer

WRAPPED = ("encode", "_encode_plus", "decode", "_decode")
"""Methods of ``transformers`` that lead to the tokenizer proper, unless a model's own class does more in them."""


class DirectTokenizer:
    """The tokenizer proper. Text to ids and back, as ``transformers`` would without truncation and padding."""

    def __init__(self, tokenizer: Any) -> None:
        self._wrapper = tokenizer
        self._backend = tokenizer.backend_tokenizer

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""
        if self._backend.truncation is not None or self._backend.padding is not None:
            # Whoever used it last for something else left this; transformers takes it back.
            return self._wrapper.encode(text, add_special_tokens=add_special_tokens)
        # Fast: without the place of each token in the text.
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Ids to text."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)


def direct(tokenizer: TextTokenizer) -> TextTokenizer:
    """The shorter way to a tokenizer, or the tokenizer itself where its class goes ways of its own."""
    import transformers

    untyped: Any = transformers
    plain, kind, asked = untyped.PreTrainedTokenizerFast, type(tokenizer), cast("Any", tokenizer)
    if not isinstance(tokenizer, plain):
        return tokenizer
    own_ways = any(name in vars(asked) or getattr(kind, name) is not getattr(plain, name) for name in WRAPPED)
    if own_ways or asked.split_special_tokens or asked.clean_up_tokenization_spaces:
        return tokenizer
    return DirectTokenizer(tokenizer)
