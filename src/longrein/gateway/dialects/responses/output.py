"""A reply as a Responses object, and as the events that build it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import ChatReply
from longrein.gateway.dialects.responses.calls import CallForm, FunctionForm, OutputItem, new_id
from longrein.gateway.dialects.responses.reasoning import write_reasoning

NOT_KEPT = {"background": False, "conversation": None, "previous_response_id": None, "prompt": None, "store": False}
"""No response outlives its request here."""

ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields that a Responses object repeats, and what they are where the request does not say."""


class ReplyForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of the form of its reply."""

    echo: dict[str, msgspec.Raw]
    """Fields of the request that every Responses object repeats."""
    forms: dict[str, CallForm]
    sealed: bool
    """Give thoughts as ``encrypted_content`` too."""


def echo_of(raw: dict[str, Any]) -> dict[str, msgspec.Raw]:
    """The fields of a request that its reply repeats, encoded once: a stream says them three times.

    Raises:
        RecursionError: nested too deeply.
    """
    return {
        key: msgspec.Raw(msgspec.json.encode(default if raw.get(key) is None else raw[key]))
        for key, default in ECHOED.items()
    }


def write_response(reply: ChatReply, form: ReplyForm, model: str) -> bytes:
    """The finished Responses object."""
    head = _head(model, form.echo)
    items = [item.whole for item in _items(reply, form)]
    return msgspec.json.encode({**head, **_end(reply, items)})


def write_events(reply: ChatReply, form: ReplyForm, model: str) -> tuple[bytes, ...]:
    """The same, built up event by event."""
    numbers = count()
    return tuple(_event(body, next(numbers)) for body in _bodies(reply, form, model))


def write_failure(error: GatewayRequestError) -> bytes:
    """The end of a stream that has shown nothing yet.

    Codex reads ``response.failed``; official clients raise on ``error``, and their stream helpers want
    ``response.created`` before anything else.
    """
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    code = "server_error" if error.status >= 500 else error.code
    head = _head("", echo_of({}))
    told = {"code": code, "message": str(error), "param": None}
    bodies = [
        {"type": "response.created", "response": {**head, **_begin()}},
        {"type": "response.failed", "response": {**head, **_begin(), "status": "failed", "error": told}},
        {"type": "error", **told, "error": {"type": kind, **told}},
    ]
    return b"".join(_event(body, number) for number, body in enumerate(bodies))


def _bodies(reply: ChatReply, form: ReplyForm, model: str) -> Iterator[dict[str, Any]]:
    head = _head(model, form.echo)
    begun = msgspec.Raw(msgspec.json.encode({**head, **_begin()}))
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    items = _items(reply, form)
    for index, item in enumerate(items):
        yield {"type": "response.output_item.added", "output_index": index, "item": item.begun}
        for step in item.steps:
            yield {**step, "output_index": index}
        yield {"type": "response.output_item.done", "output_index": index, "item": item.whole}
    end = _end(reply, [item.whole for item in items])
    yield {"type": f"response.{end['status']}", "response": {**head, **end}}


def _items(reply: ChatReply, form: ReplyForm) -> list[OutputItem]:
    """Thought, text, calls. A cut reply was cut in its last item."""
    message = reply.message
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    reasoning: str = message.get("reasoning_content") or ""
    content: str = message.get("content") or ""
    last = "incomplete" if reply.finish_reason == "length" else "completed"
    items: list[OutputItem] = []
    if reasoning:
        items.append(write_reasoning(reasoning, "completed", sealed=form.sealed))
    if content or not calls:
        items.append(_message(content, "completed" if calls else last))
    for index, call in enumerate(calls, 1):
        name: str = call["function"]["name"]
        writer = form.forms.get(name) or FunctionForm(own_name=name)
        status = last if index == len(calls) else "completed"
        items.append(writer.write(call["id"], call["function"]["arguments"], status))
    return items


def _message(text: str, status: str) -> OutputItem:
    item_id = new_id("msg")
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    whole: dict[str, Any] = {"type": "message", "id": item_id, "role": "assistant", "status": status, "content": [part]}
    where: dict[str, Any] = {"item_id": item_id, "content_index": 0}
    steps: tuple[dict[str, Any], ...] = (
        {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **where, "delta": text, "logprobs": []},
        {"type": "response.output_text.done", **where, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **where, "part": part},
    )
    return OutputItem(begun={**whole, "content": [], "status": "in_progress"}, steps=steps, whole=whole)


def _head(model: str, echo: dict[str, msgspec.Raw]) -> dict[str, Any]:
    head = {"id": new_id("resp"), "object": "response", "created_at": int(time.time()), "model": model}
    return {**head, **NOT_KEPT, **echo}


def _begin() -> dict[str, Any]:
    return {"status": "in_progress", "error": None, "incomplete_details": None, "output": [], "usage": None}


def _end(reply: ChatReply, items: list[dict[str, Any]]) -> dict[str, Any]:
    cut = reply.finish_reason == "length"
    return {
        "status": "incomplete" if cut else "completed",
        "completed_at": None if cut else int(time.time()),
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items,
        "usage": _usage(reply),
    }


def _usage(reply: ChatReply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        # Thoughts are not counted apart: they are part of the output tokens.
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _event(body: dict[str, Any], number: int) -> bytes:
    data = msgspec.json.encode({**body, "sequence_number": number})
    return f"event: {body['type']}\ndata: ".encode() + data + b"\n\n"
