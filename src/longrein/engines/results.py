"""Which call a tool's result answers: chat templates look it up by the id, by the tool's name or by its place.

Agents leave the name out, and some give ids of their own. Here each result gets both from its call, so that whatever a
template goes by, it finds the same call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from longrein.types import Message


def addressed(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """A conversation whose results carry the id and the name of the call that they answer.

    That is the call with their id, in the latest turn before them or in an earlier one. An id that nobody gave belongs
    to the first call of the latest turn that no result answers by its id. A name that is there already stays.
    """
    if all(message["role"] != "tool" for message in messages):
        return messages
    earlier: dict[str, str] = {}
    written: list[Message] = []
    for turn in _turns(messages):
        written += _addressed_turn(turn, earlier)
        earlier |= {call["id"]: call["function"]["name"] for call in _calls(turn[0])}
    return tuple(written)


def answers_only(reply: Message, results: tuple[Message, ...]) -> bool:
    """Whether all results among these messages carry the id of a call of this turn."""
    ids = {call["id"] for call in _calls(reply)}
    return all(message.get("tool_call_id", "") in ids for message in results if message["role"] == "tool")


def _turns(messages: tuple[Message, ...]) -> Iterator[tuple[Message, ...]]:
    """Pieces that begin with an assistant's message each; but the first, perhaps."""
    starts = [at for at, message in enumerate(messages) if message["role"] == "assistant" or at == 0]
    for begin, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        yield messages[begin:end]


def _addressed_turn(turn: tuple[Message, ...], earlier: dict[str, str]) -> Iterator[Message]:
    calls = _calls(turn[0])
    count = Counter(call["id"] for call in calls)
    names = {call["id"]: call["function"]["name"] for call in calls if count[call["id"]] == 1}
    answered = {message.get("tool_call_id", "") for message in turn if message["role"] == "tool"}
    open_calls = (call for call in calls if call["id"] not in names.keys() & answered)
    for message in turn:
        if message["role"] != "tool":
            yield message
            continue
        call_id: str = message.get("tool_call_id", "")
        name = names.get(call_id) or earlier.get(call_id)
        if name is not None:
            yield {**message, "name": message.get("name") or name}
        elif call := next(open_calls, None):
            yield {**message, "tool_call_id": call["id"], "name": message.get("name") or call["function"]["name"]}
        else:
            yield message


def _calls(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []
