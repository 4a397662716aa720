"""Our replies -> OpenAI's chat completions, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import ChatReply
from longrein.types import Message


def whole(reply: ChatReply, model: str) -> dict[str, Any]:
    """A completion in one piece."""
    choice = {"index": 0, "message": reply.message, "logprobs": None, "finish_reason": reply.finish_reason}
    return {**_head("chat.completion", model), "choices": [choice], "usage": _usage(reply)}


def chunks(reply: ChatReply, model: str, *, include_usage: bool) -> list[dict[str, Any]]:
    """Role, reasoning, content, tool calls, finish reason, usage."""
    head = _head("chat.completion.chunk", model)
    made = [{**head, "choices": [_choice(delta)]} for delta in _deltas(reply.message)]
    made.append({**head, "choices": [{**_choice({}), "finish_reason": reply.finish_reason}]})
    if include_usage:
        made.append({**head, "choices": [], "usage": _usage(reply)})
    return made


def _deltas(message: Message) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    if message.get("reasoning_content"):
        yield {"reasoning_content": message["reasoning_content"]}
    if message.get("content"):
        yield {"content": message["content"]}
    for index, call in enumerate(message.get("tool_calls") or []):
        yield {"tool_calls": [{"index": index, **call}]}


def model_entry(model: str, context_length: int) -> dict[str, Any]:
    """One entry of the list of models, with vLLM's ``max_model_len``."""
    return {"id": model, "object": "model", "created": 0, "owned_by": "longrein", "max_model_len": context_length}


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def _choice(delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}


def _usage(reply: ChatReply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def event(body: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def error_body(error: GatewayRequestError) -> dict[str, Any]:
    """OpenAI's error body."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}
