"""No tool call stays without an answer: chat templates and models take every id that was given to be answered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from longrein.types import Message

NOT_RUN = json.dumps({"error": "this call was not run"})


def with_every_call_answered(messages: Sequence[Message]) -> list[Message]:
    """The conversation with a result for every tool call: what nobody ran says so, after its turn's other results."""
    said: list[Message] = []
    open_calls: dict[str, str] = {}
    for message in messages:
        if message.get("role") == "tool":
            open_calls.pop(message.get("tool_call_id", ""), None)
        else:
            said += _not_run(open_calls)
            open_calls = {call.get("id", ""): call["function"]["name"] for call in _calls(message)}
        said.append(message)
    return said + _not_run(open_calls)


def _not_run(open_calls: dict[str, str]) -> list[Message]:
    return [
        {"role": "tool", "tool_call_id": call_id, "name": name, "content": NOT_RUN}
        for call_id, name in open_calls.items()
    ]


def _calls(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []
