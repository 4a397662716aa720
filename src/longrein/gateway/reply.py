"""A completion as the answer that the agent gets."""

from __future__ import annotations

import secrets
from typing import Any

from longrein.engines.parsed import ParsedReply
from longrein.gateway.budget import Limit
from longrein.gateway.dialect import AgentFinish, ChatReply
from longrein.types import Completion, FinishReason, Message

LIMIT_TEXT = "The {} limit of this session is reached; the session ends here."
LIMITS: dict[Limit, str] = {"calls": "call", "sampled_tokens": "token", "time": "time", "context": "context"}


def stop_of(parsed: ParsedReply, stop: tuple[str, ...]) -> str:
    """The stop string that comes first in the answer; empty when none does."""
    found = [(parsed.content.find(text), text) for text in stop if text in parsed.content]
    return min(found)[1] if found else ""


def as_message(parsed: ParsedReply, stopped_by: str) -> Message:
    """The assistant message, with tool-call ids of our own and cut before the stop string that ended it, if any."""
    content = parsed.content.partition(stopped_by)[0] if stopped_by else parsed.content
    message: Message = {"role": "assistant", "content": content}
    if parsed.reasoning_content:
        message["reasoning_content"] = parsed.reasoning_content
    if parsed.tool_calls:
        message["content"] = content or None
        message["tool_calls"] = [_tool_call(call.name, call.arguments) for call in parsed.tool_calls]
    return message


def as_reply(message: Message, completion: Completion, prompt_tokens: int, stop_sequence: str = "") -> ChatReply:
    """The answer with its usage."""
    return ChatReply(
        message=message,
        finish_reason=_finish(message, completion.finish_reason),
        prompt_tokens=prompt_tokens,
        completion_tokens=int(completion.token_ids.size),
        cached_tokens=max(prompt_tokens - completion.prefill_tokens, 0) if completion.prefill_tokens else 0,
        stop_sequence=stop_sequence,
    )


def limit_reply(limit: Limit) -> ChatReply:
    """A final answer that nobody sampled: well-formed, so that the agent ends of itself."""
    message: Message = {"role": "assistant", "content": LIMIT_TEXT.format(LIMITS[limit])}
    return ChatReply(message=message, finish_reason="stop", prompt_tokens=0, completion_tokens=0)


def _finish(message: Message, finish_reason: FinishReason) -> AgentFinish:
    return "tool_calls" if finish_reason == "stop" and message.get("tool_calls") else finish_reason


def _tool_call(name: str, arguments: str) -> dict[str, Any]:
    # Nine letters and digits: the one form that every chat template takes (Mistral's refuses others).
    return {
        "id": secrets.token_hex(5)[:9],
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
