"""Plays a recorded session again: its requests over HTTP, its replies said by the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import aiohttp
import msgspec
import numpy as np

from longrein.gateway.routes import route
from longrein.types import I32, Message
from tests.gateway.captures import Recorded
from tests.gateway.rig import Rig, renderer, say

CLOSING = say("done")
"""What is said where the recording does not show it."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One request, and what was answered."""

    request: Recorded
    messages: tuple[Message, ...]
    """As its dialect reads them."""
    reply: Message


def script(recorded: list[Recorded]) -> list[Step]:
    """The requests, with answers as later requests show them."""
    requests = with_gaps_filled(recorded)
    read = [decoded(request) for request in requests]
    return [
        Step(request=request, messages=messages, reply=_reply(messages, read[at + 1 :]))
        for at, (request, messages) in enumerate(zip(requests, read, strict=True))
    ]


async def play(r: Rig, steps: list[Step], said: Mapping[int, Message] = {}) -> None:
    """Send every request, with our tool-call ids in place of the recorded ones.

    ``said``: step -> what the model says there, in place of what the agent has made of it.
    """
    async with aiohttp.ClientSession() as http:
        for at, step in enumerate(steps):
            r.engine.tell("s", [sampled(said.get(at, step.reply))])
            ids = _our_ids(r, steps[:at], step.messages)
            body = json.dumps(step.request.body)
            for recorded, ours in ids.items():
                body = body.replace(json.dumps(recorded), json.dumps(ours))
            url = f"{r.endpoint.base_url}{step.request.path}?{step.request.query}"
            async with http.post(url, data=body, headers=dict(step.request.headers)) as response:
                answer = await response.text()
                assert response.status == 200, answer
            for call in r.trace().calls[-1].reply.get("tool_calls") or []:
                assert call["id"] in answer or "thoughtSignature" in answer


def decoded(request: Recorded) -> tuple[Message, ...]:
    """A request's messages as its dialect reads them."""
    arrival = request.arrival
    return route(arrival.path, arrival.headers).dialect.decode(arrival).messages


def sampled(message: Message) -> I32:
    """The ids of an answer, thought included."""
    thought = message.get("reasoning_content", "")
    said = renderer().encode_reply(message)
    return np.concatenate([renderer().encode(f"<think>{thought}</think>"), said]) if thought else said


def with_gaps_filled(recorded: list[Recorded]) -> list[Recorded]:
    """Requests that a long recording leaves out are beginnings of the next one, which holds all turns."""
    requests = recorded[:1]
    for before, after in pairwise(recorded):
        missing = after.number - before.number - 1
        if missing:
            name, items = _items(after)
            first = len(_items(before)[1]) + 1
            ends = [at for at in range(first, len(items)) if _is_models(items[at]) and not _is_models(items[at - 1])]
            assert len(ends) == missing
            requests += [msgspec.structs.replace(after, body={**after.body, name: items[:end]}) for end in ends]
        requests.append(after)
    return requests


def _items(request: Recorded) -> tuple[str, list[dict[str, Any]]]:
    (name,) = {"messages", "input", "contents"} & request.body.keys()
    return name, request.body[name]


def _is_models(item: dict[str, Any]) -> bool:
    return item.get("role") in ("assistant", "model") or item.get("type") in ("reasoning", "function_call")


def _reply(messages: tuple[Message, ...], later: list[tuple[Message, ...]]) -> Message:
    end = len(messages)
    shown = (after[end] for after in later if after[:end] == messages and len(after) > end)
    return next((message for message in shown if message["role"] == "assistant"), CLOSING)


def _our_ids(r: Rig, steps: list[Step], messages: tuple[Message, ...]) -> dict[str, str]:
    """Recorded tool-call id -> the one that the gateway gave in its place, for the turns in ``messages``."""
    ids: dict[str, str] = {}
    for step, call in zip(steps, r.trace().calls, strict=True):
        end = len(step.messages)
        if messages[:end] == step.messages and len(messages) > end and messages[end] == step.reply:
            recorded, ours = step.reply.get("tool_calls") or [], call.reply.get("tool_calls") or []
            ids |= {old["id"]: new["id"] for old, new in zip(recorded, ours, strict=False)}
    return ids
