"""A completion as the answer that the agent gets."""

from __future__ import annotations

import secrets
from typing import Any

from longrein.engines.parsed import ParsedReply
from longrein.gateway.dialect import AgentFinish, ChatReply
from longrein.types import Completion, FinishReason, Message

LIMIT_TEXT = "The call limit of this session is reached; the session ends here."


def as_message(parsed: ParsedReply, stop: tuple[str, ...]) -> Message:
    """The assistant message, with tool-call ids of our own and cut before the first stop string."""
    content = _before_stop(parsed.content, stop)
    message: Message = {"role": "assistant", "content": content}
    if parsed.reasoning_content:
        message["reasoning_content"] = parsed.reasoning_content
    if parsed.tool_calls:
        message["content"] = content or None
        message["tool_calls"] = [_tool_call(call.name, call.arguments) for call in parsed.tool_calls]
    return message


def as_reply(message: Message, completion: Completion, prompt_tokens: int) -> ChatReply:
    """The answer with its usage."""
    return ChatReply(
        message=message,
        finish_reason=_finish(message, completion.finish_reason),
        prompt_tokens=prompt_tokens,
        completion_tokens=int(completion.token_ids.size),
    )


def limit_reply() -> ChatReply:
    """A final answer that nobody sampled: well-formed, so that the agent ends of itself."""
    message: Message = {"role": "assistant", "content": LIMIT_TEXT}
    return ChatReply(message=message, finish_reason="stop", prompt_tokens=0, completion_tokens=0)


def _finish(message: Message, finish_reason: FinishReason) -> AgentFinish:
    return "tool_calls" if finish_reason == "stop" and message.get("tool_calls") else finish_reason


def _before_stop(content: str, stop: tuple[str, ...]) -> str:
    found = [at for at in (content.find(text) for text in stop) if at >= 0]
    return content[: min(found)] if found else content


def _tool_call(name: str, arguments: str) -> dict[str, Any]:
    # Nine letters and digits: the one form that every chat template takes (Mistral's refuses others).
    return {
        "id": secrets.token_hex(5)[:9],
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
