"""Calls in plain text are found in linear time, and as they always were."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.tool_parsers import CLOSE, OPEN, HermesText, ParsedToolCall, _parse_call, split_hermes

CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


def split_slowly(text: str) -> HermesText:
    """The definition: the body of an opener ends with the next closer, and one that is no call stays in the text."""
    said: list[str] = []
    calls: list[ParsedToolCall] = []
    head, opener, rest = text.partition(OPEN)
    while opener:
        body, closer, after = rest.partition(CLOSE)
        call = _parse_call(body) if closer else None
        said.append(head if call else head + OPEN)
        calls += [call] if call else []
        head, opener, rest = (after if call else rest).partition(OPEN)
    content = "".join([*said, head])
    return HermesText(content=content if content.strip() else "", calls=tuple(calls))


PIECES = st.sampled_from(
    [
        *(OPEN, CLOSE, CALL, "{", "}", '"', "\\", '\\"', ":", ",", " ", "\n", "\u00a0", "\x00", "é", "<", "x", "1e9"),
        *('{"name": "', '{"name": "a"}', '{"name": "a", "arguments": {"x": "', '"}}', f'"{OPEN}"', f'"{CLOSE}"'),
        *(
            f'{{"name": "{OPEN}{{", "arguments": {{}}}}',
            f'{{"name": "a", "arguments": {{"x": "{OPEN}',
            '[1, "\\u003c"]',
        ),
    ]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(PIECES, max_size=14))
def test_splitting_finds_what_its_definition_says(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert split_hermes(text) == split_slowly(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans(), st.sampled_from(["", " ", "\n\t"]))
def test_every_object_is_a_call(arguments: dict[str, object], ascii_only: bool, space: str) -> None:
    import json

    body = json.dumps({"name": "bash", "arguments": arguments}, ensure_ascii=ascii_only)
    text = f"a{OPEN}{space}{body}{space}{CLOSE}z"
    assert split_hermes(text) == split_slowly(text)


@pytest.mark.parametrize(
    "unit",
    [
        *(f'{OPEN}{{"name": "x"', f'{OPEN}{{"', f'{OPEN}{{\\"', f"{OPEN}{{", f"{OPEN} ", f'{OPEN}{{":1,"', f'{OPEN}"'),
        *(f'{OPEN}{{"a":1,"', f"{OPEN}{{{CLOSE}", f'{OPEN}{{"x": "{CLOSE}', f"{OPEN}{{}}", f'{OPEN}{{"\\'),
    ],
)
@pytest.mark.parametrize("end", ["", CLOSE, f'"{CLOSE}', f'"}}{CLOSE}'])
def test_a_degenerate_completion_costs_little(unit: str, end: str) -> None:
    text = unit * 40_000 + end
    began = time.process_time()
    split = split_hermes(text)
    assert time.process_time() - began < 1
    assert split.calls == () and split.content == text
