"""Conversations recorded from real agents: the last request of each holds all earlier ones as prefixes."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import numpy as np
import pytest

from longrein.types import I32, Message
from tests import tiny
from tests.gateway.rig import assert_exact, renderer, rig, say

# mini-swe-agent drops two turns that it could not read: what follows them branches off the turn before.
PARENTS = {"opencode": [None, 0, 1], "pi": [None, 0, 1], "mini-swe-agent": [None, 0, 1, 1, 1]}


def sampled(message: Message) -> I32:
    """The ids of a recorded answer, thought included."""
    thought = renderer().encode(f"<think>{message.get('reasoning_content', '')}</think>")
    return np.concatenate([thought, renderer().encode_reply(message)])


def cuts(messages: list[Message]) -> list[int]:
    """How many messages each request had."""
    last_tool = max(at for at, message in enumerate(messages) if message["role"] == "tool")
    return [end for end in range(1, len(messages) + 1) if end > last_tool or messages[end]["role"] == "assistant"]


@pytest.mark.parametrize("agent", PARENTS)
async def test_recorded_conversation_is_stitched(agent: str) -> None:
    body: dict[str, Any] = json.loads((tiny.DATA / "captures" / f"{agent}.json").read_text())
    messages: list[Message] = body["messages"]
    body["stream"] = False
    async with rig([], context_length=131072) as r, aiohttp.ClientSession() as http:
        for end in cuts(messages):
            recorded = messages[end] if end < len(messages) else say("done")
            r.engine.tell("s", [sampled(recorded) if recorded["role"] == "assistant" else say("dropped")])
            async with http.post(r.url, json={**body, "messages": messages[:end]}) as response:
                assert response.status == 200, await response.text()
        trace = r.trace()
        assert [call.parent_id for call in trace.calls] == PARENTS[agent]
        assert all(call.delivered for call in trace.calls)
        assert_exact(trace, r.engine)
