"""Completions read the short way say what the library's way says."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import create_renderer  # pyright: ignore
from renderers.configs import DefaultRendererConfig

from longrein.engines import tool_parsers
from longrein.engines.replies import LibraryReplies, TextReplies
from tests import tiny

CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {}}}
SAID = st.lists(
    st.sampled_from(
        [CALL, "<tool_call>", "</tool_call>", "{", "text", "\n", " ", "é", "<think>", "</think>", "<|im_start|>"]
    ),
    max_size=8,
).map("".join)
OPENINGS = ("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n", "<think><|im_end|>\n<|im_start|>assistant\n")


@cache
def ways() -> tuple[Any, LibraryReplies, TextReplies]:
    tokenizer: Any = tiny.tokenizer()
    parser = tool_parsers.resolve("auto")
    library = LibraryReplies(create_renderer(tokenizer, DefaultRendererConfig(tool_parser=parser)))
    return tokenizer, library, TextReplies(tokenizer, library)


@settings(max_examples=200, deadline=None)
@given(SAID, st.sampled_from(OPENINGS), st.booleans())
def test_both_ways_say_the_same(said: str, opening: str, offered: bool) -> None:
    tokenizer, library, text = ways()
    ids = tokenizer.encode(said, add_special_tokens=False)
    prompt = tokenizer.encode(opening, add_special_tokens=False)
    tools = (TOOL,) if offered else ()
    assert text.read(ids, prompt, tools) == library.read(ids, prompt, tools)
