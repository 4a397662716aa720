"""Text tokenised in pieces gives the ids of the whole, for every kind of tokenizer."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longrein.engines.recent import Recent
from longrein.engines.segments import SegmentEncoder
from tests import tiny

TAGS = ("<|im_start|>", "<|im_end|>", "<|im_start|>x", "<left>", "<right>", "<both>", "<plain>")


def _with_tags(tokenizer: Any) -> Any:
    added = [
        AddedToken("<|im_start|>x", special=True, normalized=False),
        AddedToken("<left>", special=True, normalized=False, lstrip=True),
        AddedToken("<right>", special=True, normalized=False, rstrip=True),
        AddedToken("<both>", special=True, normalized=False, lstrip=True, rstrip=True),
        AddedToken("<plain>", special=False, normalized=True),
    ]
    tokenizer.add_tokens(added)
    return tokenizer


@cache
def byte_level() -> Any:
    return _with_tags(tiny.tokenizer())


@cache
def prefix_space() -> Any:
    tokenizer = _with_tags(tiny.tokenizer())
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def _sentences(scheme: Any, normalizer: Any) -> Any:
    letters = ["<unk>", "\u2581", *"abcdefgh <>|_imstar\n", "\u2581a", "ab", "\u2581ab"]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(letters))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("\u2581", "a"), ("a", "b")], unk_token="<unk>"))
    if scheme is not None:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)  # pyright: ignore
    if normalizer is not None:
        backend.normalizer = normalizer  # pyright: ignore
    backend.decoder = decoders.Metaspace()  # pyright: ignore
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    return _with_tags(fast)


@cache
def metaspace_first() -> Any:
    return _sentences("first", None)


@cache
def metaspace_always() -> Any:
    return _sentences("always", None)


@cache
def prepending() -> Any:
    return _sentences(None, normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]))


MAKERS = (byte_level, prefix_space, metaspace_first, metaspace_always, prepending)
PARTS = st.one_of(
    st.sampled_from(TAGS), st.sampled_from([" ", "\n", "a", "ab", "<", "<|im_", "|>"]), st.text(max_size=4)
)


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=120, deadline=None)
@given(st.lists(PARTS, max_size=14))
def test_pieces_are_the_whole(make: Any, parts: list[str]) -> None:
    text = "".join(parts)
    encoder = SegmentEncoder(make())
    whole = make().encode(text, add_special_tokens=False)
    for _ in range(2):
        ids = encoder.encode(text)
        assert ids.dtype == np.int32
        assert ids.tolist() == whole


def test_what_was_tokenised_before_is_not_tokenised_again() -> None:
    asked: list[str] = []

    class Counting:
        is_fast = True
        added_tokens_decoder = byte_level().added_tokens_decoder

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            asked.append(text)
            return byte_level().encode(text, add_special_tokens=add_special_tokens)

        def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
            raise AssertionError("nothing is decoded")

    encoder = SegmentEncoder(Counting())
    first = encoder.encode("<|im_start|>system\nlong<|im_end|>\n<|im_start|>user\none<|im_end|>\n")
    asked.clear()
    second = encoder.encode("<|im_start|>system\nlong<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n")
    assert asked == ["<|im_start|>user\ntwo"]
    assert first.size == second.size


def test_pieces_that_are_handed_out_twice_cannot_be_written_into() -> None:
    encoder = SegmentEncoder(byte_level())
    with pytest.raises(ValueError, match="read-only"):
        encoder.encode("abc")[0] = 1


def test_tokenizers_that_look_for_special_tokens_otherwise_are_asked_for_the_whole() -> None:
    tokenizer = _with_tags(tiny.tokenizer())
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=False)])
    text = "a word<|im_start|>words<|im_end|>sword"
    assert SegmentEncoder(tokenizer).encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False)
    tokenizer = tiny.tokenizer()
    tokenizer.split_special_tokens = True
    text = "<|im_start|>user"
    assert SegmentEncoder(tokenizer).encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False)


def test_pieces_are_kept_up_to_a_bound() -> None:
    encoder = SegmentEncoder(byte_level(), capacity_chars=100)
    for number in range(50):
        encoder.encode(f"<|im_start|>message {number}<|im_end|>")
        assert encoder.kept_chars <= 100
    encoder.encode("x" * 101)
    assert encoder.kept_chars <= 100


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 20), st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9), st.booleans()), max_size=30))
def test_recent_keeps_what_was_used_last_within_its_capacity(capacity: int, uses: list[tuple[int, int, bool]]) -> None:
    recent: Recent[int, str] = Recent(capacity)
    model: dict[int, int] = {}
    for key, weight, asks in uses:
        if asks:
            assert (recent.get(key) is not None) == (key in model)
            if key in model:
                model[key] = model.pop(key)
        elif weight <= capacity:
            model.pop(key, None)
            model[key] = weight
            recent.put(key, str(key), weight)
            while sum(model.values()) > capacity:
                del model[next(iter(model))]
        else:
            recent.put(key, str(key), weight)
        assert recent.weight == sum(model.values()) <= max(capacity, 0)
        assert len(recent) == len(model)
