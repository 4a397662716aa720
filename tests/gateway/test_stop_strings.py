"""Where an answer stops: at the first stop string in it, whichever stands first in the list."""

from __future__ import annotations

import pytest

from longrein.engines.parsed import ParsedReply
from longrein.gateway.reply import as_message, stop_of
from tests.gateway.rig import USER, assert_exact, rig, say


def parsed(content: str) -> ParsedReply:
    return ParsedReply(content=content, reasoning_content="", tool_calls=())


@pytest.mark.parametrize(
    ("content", "stop", "found", "left"),
    [
        ("one two three", ("three", "two"), "two", "one "),
        ("one two three", ("two", "three"), "two", "one "),
        ("b a b a", ("a", "b"), "b", ""),
        ("one two", ("missing", "two"), "two", "one "),
        ("one two", ("missing",), "", "one two"),
        ("one", (), "", "one"),
    ],
)
def test_the_first_stop_string_ends_the_answer(content: str, stop: tuple[str, ...], found: str, left: str) -> None:
    stopped_by = stop_of(parsed(content), stop)
    assert stopped_by == found
    assert as_message(parsed(content), stopped_by)["content"] == left


async def test_an_agent_is_told_which_stop_string_it_was() -> None:
    async with rig([say("think: yes. act: no.")]) as r, r.client() as client:
        reply = await client.chat.completions.create(model="m", messages=[USER], stop=["act:", ":"])
        assert reply.choices[0].message.content == "think"
        assert_exact(r.trace(), r.engine)
