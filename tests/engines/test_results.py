"""Results find their calls: by id, else by place, and never a call of another turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.render import ChatRenderer
from longrein.engines.results import addressed
from longrein.types import Message
from tests import tiny
from tests.gateway.test_splices import LABELS_RESULTS

USER: Message = {"role": "user", "content": "go"}


def turn(**calls: str) -> Message:
    """An assistant's message: id -> name of its calls."""
    called = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for call_id, name in calls.items()
    ]
    return {"role": "assistant", "content": "", "tool_calls": called}


def result(call_id: str, content: str = "out", **more: Any) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": call_id, **more}


def labels(*messages: Message) -> list[tuple[str, str]]:
    shown = addressed(messages)
    return [(m["tool_call_id"], m.get("name", "")) for m in shown if m["role"] == "tool"]


BOTH = turn(a="read", b="write")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((USER, BOTH, result("a"), result("b")), [("a", "read"), ("b", "write")]),
        ((USER, BOTH, result("b"), result("a")), [("b", "write"), ("a", "read")]),
        ((USER, BOTH, result("b")), [("b", "write")]),
        ((USER, BOTH, result("a"), result("a")), [("a", "read"), ("a", "read")]),
        # Ids that nobody gave go to the calls that are left.
        ((USER, BOTH, result("x"), result("y")), [("a", "read"), ("b", "write")]),
        ((USER, BOTH, result("x"), result("a")), [("b", "write"), ("a", "read")]),
        ((USER, BOTH, result(""), result("b"), result("z")), [("a", "read"), ("b", "write"), ("z", "")]),
        # The latest turn with an id has it; a late result stays with its own turn.
        ((USER, BOTH, result("a"), turn(a="list"), result("a")), [("a", "read"), ("a", "list")]),
        ((USER, BOTH, result("a"), turn(c="list"), result("b")), [("a", "read"), ("b", "write")]),
        ((USER, BOTH, result("b", name="mended")), [("b", "mended")]),
        ((result("a"), USER), [("a", "")]),
    ],
)
def test_results_carry_the_id_and_the_name_of_their_call(
    messages: tuple[Message, ...], expected: list[tuple[str, str]]
) -> None:
    assert labels(*messages) == expected


def test_calls_that_share_an_id_are_told_apart_by_place() -> None:
    twins: Message = {"role": "assistant", "tool_calls": turn(a="read")["tool_calls"] + turn(a="write")["tool_calls"]}
    assert labels(USER, twins, result("a"), result("a")) == [("a", "read"), ("a", "write")]


def test_a_conversation_without_results_is_left_alone() -> None:
    messages = (USER, BOTH)
    assert addressed(messages) is messages and addressed(()) == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "x"]), min_size=1, max_size=3))
def test_a_splice_labels_results_as_the_whole_rendering_does(answers: list[str]) -> None:
    r = ChatRenderer.of(tiny.tokenizer(LABELS_RESULTS))
    new = tuple(result(call_id, f"{number}.") for number, call_id in enumerate(answers))
    prompt, said = r.render((USER,), ()), r.encode_reply(BOTH)
    delta = r.bridge(prompt=prompt, completion=said, reply=BOTH, new=new, tools=())
    whole = r.render((USER, BOTH, *new), ())
    if delta is None:
        assert "x" in [call_id for call_id, _ in labels(BOTH, *new)]
    else:
        np.testing.assert_array_equal(np.concatenate([prompt, said, delta]), whole)


def test_a_result_of_no_call_of_the_turn_is_not_bridged() -> None:
    r = ChatRenderer.of(tiny.tokenizer())
    prompt, said = r.render((USER,), ()), r.encode_reply(turn(a="read"))
    for new in ((result("a"), result("b")), (result("a"), USER, result("late"))):
        assert r.bridge(prompt=prompt, completion=said, reply=turn(a="read"), new=new, tools=()) is None
