"""The short way to a tokenizer gives what the long way gives, and is not taken where the long way does more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from longrein.engines.direct import DirectTokenizer, direct
from tests import tiny

TOKENIZER: Any = tiny.tokenizer()
TOKENIZER.clean_up_tokenization_spaces = False
TEXT = st.lists(
    st.one_of(st.text(max_size=6), st.sampled_from(["<|im_start|>", "<|im_end|>", " ", "ls ."])), max_size=8
)


@settings(max_examples=100, deadline=None)
@given(TEXT.map("".join), st.lists(st.integers(0, 258), max_size=12), st.booleans())
def test_short_and_long_way_agree(text: str, ids: list[int], special: bool) -> None:
    short = direct(TOKENIZER)
    assert isinstance(short, DirectTokenizer)
    assert short.encode(text, add_special_tokens=special) == TOKENIZER.encode(text, add_special_tokens=special)
    assert short.decode(ids, skip_special_tokens=special) == TOKENIZER.decode(ids, skip_special_tokens=special)


def test_truncation_that_somebody_left_behind_does_not_truncate() -> None:
    tokenizer: Any = tiny.tokenizer()
    tokenizer.clean_up_tokenization_spaces = False
    short = direct(tokenizer)
    tokenizer("a long text", truncation=True, max_length=3, padding="max_length")
    assert short.encode("a long text", add_special_tokens=False) == TOKENIZER.encode(
        "a long text", add_special_tokens=False
    )


class Shouting(PreTrainedTokenizerFast):
    def _decode(self, *args: Any, **kwargs: Any) -> str:
        return super()._decode(*args, **kwargs).upper()  # pyright: ignore


@pytest.mark.parametrize("change", ["class", "cleaning", "splitting", "slow"])
def test_tokenizers_with_ways_of_their_own_keep_them(change: str) -> None:
    tokenizer: Any = tiny.tokenizer()
    tokenizer.clean_up_tokenization_spaces = change == "cleaning"
    tokenizer.split_special_tokens = change == "splitting"
    if change == "class":
        tokenizer = Shouting(tokenizer_object=tokenizer.backend_tokenizer)
        tokenizer.clean_up_tokenization_spaces = False
    if change == "slow":
        tokenizer = object()
    assert direct(tokenizer) is tokenizer
