"""An answer in Anthropic's form: content blocks, whole or as server-sent events."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from longrein.gateway.dialect import AgentFinish, ChatReply
from longrein.gateway.dialects.messages.request import UNPARSED

STOP_REASONS: dict[AgentFinish, str] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class WrittenBlock(msgspec.Struct, frozen=True, kw_only=True):
    """One content block, both ways."""

    whole: dict[str, Any]
    opening: dict[str, Any]
    """The block as a stream announces it, empty."""
    deltas: tuple[dict[str, Any], ...]
    """What fills it."""


def whole(reply: ChatReply, model: str) -> dict[str, Any]:
    """A Message."""
    content = [block.whole for block in _blocks(reply)]
    return {**_head(model), "content": content, **_ending(reply), "usage": _usage(reply, reply.completion_tokens)}


def events(reply: ChatReply, model: str) -> Iterator[dict[str, Any]]:
    """``message_start``, each block announced, filled and closed, ``message_delta``, ``message_stop``."""
    start: dict[str, Any] = {
        **_head(model),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(reply, 0),
    }
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(_blocks(reply)):
        yield {"type": "content_block_start", "index": index, "content_block": block.opening}
        for delta in block.deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": _ending(reply), "usage": _usage(reply, reply.completion_tokens)}
    yield {"type": "message_stop"}


def _blocks(reply: ChatReply) -> Iterator[WrittenBlock]:
    if reply.message.get("reasoning_content"):
        yield _thinking(reply.message["reasoning_content"])
    if reply.message.get("content"):
        yield _text(reply.message["content"])
    calls: list[dict[str, Any]] = reply.message.get("tool_calls") or []
    for call in calls:
        yield _tool_use(call["id"], call["function"]["name"], _input_json(call["function"]["arguments"]))


def _thinking(thought: str) -> WrittenBlock:
    signature = _signature(thought)
    return WrittenBlock(
        whole={"type": "thinking", "thinking": thought, "signature": signature},
        opening={"type": "thinking", "thinking": "", "signature": ""},
        deltas=(
            {"type": "thinking_delta", "thinking": thought},
            {"type": "signature_delta", "signature": signature},
        ),
    )


def _text(text: str) -> WrittenBlock:
    return WrittenBlock(
        whole={"type": "text", "text": text},
        opening={"type": "text", "text": ""},
        deltas=({"type": "text_delta", "text": text},),
    )


def _tool_use(call_id: str, name: str, input_json: str) -> WrittenBlock:
    head = {"type": "tool_use", "id": call_id, "name": name}
    return WrittenBlock(
        whole={**head, "input": msgspec.Raw(input_json.encode())},
        opening={**head, "input": {}},
        deltas=({"type": "input_json_delta", "partial_json": input_json},),
    )


def _input_json(arguments: str) -> str:
    """The model's own text where it is a JSON object, which is all that this API can carry."""
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return msgspec.json.encode({UNPARSED: {"raw": arguments, "len": len(arguments)}}).decode()
    return arguments


def _signature(thought: str) -> str:
    """Opaque to clients, which drop a thought that has none."""
    return base64.b64encode(blake2b(thought.encode(), digest_size=48, person=b"longrein").digest()).decode()


def _ending(reply: ChatReply) -> dict[str, Any]:
    if reply.stop_sequence and reply.finish_reason != "tool_calls":
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_sequence}
    return {"stop_reason": STOP_REASONS[reply.finish_reason], "stop_sequence": None}


def _usage(reply: ChatReply, output_tokens: int) -> dict[str, Any]:
    """Anthropic counts the cached part of a prompt apart from the rest."""
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": output_tokens,
    }


def _head(model: str) -> dict[str, Any]:
    return {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": model}
