"""OpenAI's chat messages and tools -> ours, whatever form they come in."""

from __future__ import annotations

from typing import Any

import msgspec

from longrein.errors import GatewayRequestError
from longrein.types import Message, Tool

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop", "seed"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("tool_choice", "parallel_tool_calls", "reasoning_effort"),
)
"""Parameters that are recorded as asked for."""
UNSUPPORTED = (
    *("functions", "function_call", "logprobs", "top_logprobs", "audio", "prediction"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
)
"""Parameters that would change what is sampled or returned in ways that are not captured."""


class StreamOptions(msgspec.Struct, frozen=True):
    """``stream_options``."""

    include_usage: bool | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    """What a tool call calls. ``arguments`` is a JSON object as text (some agents send the object)."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call echoed by the agent."""

    function: FunctionCall
    id: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A message as it comes in."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class FunctionTool(msgspec.Struct, frozen=True):
    """The function in a tool."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(msgspec.Struct, frozen=True):
    """A tool as it comes in."""

    type: str
    function: FunctionTool


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """What is read beside the conversation."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None


class ChatBody(Parameters, frozen=True, kw_only=True):
    """The fields that are read."""

    messages: list[ChatMessage]
    tools: list[ChatTool] | None = None


class LongBody(Parameters, frozen=True, kw_only=True):
    """A body read in one pass, what was sent before left as it is.

    Beside the fields that are read it has those that are recorded as asked for, and those that are refused.
    """

    messages: list[msgspec.Raw]
    tools: msgspec.Raw = msgspec.Raw(b"null")
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    seed: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_penalty: Any = None
    logit_bias: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    reasoning_effort: Any = None
    functions: Any = None
    function_call: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    audio: Any = None
    prediction: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    modalities: Any = None


UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)


def read_message(message: ChatMessage) -> Message:
    """One message, normalised. Raises ``GatewayRequestError`` for a role or content that is not supported."""
    role = ROLES.get(message.role)
    if role is None:
        raise bad_request(f"unsupported role; use one of: {', '.join(ROLES)}")
    normal: Message = {"role": role, "content": _text(message.content)}
    if message.name:
        normal["name"] = message.name
    if role == "tool":
        normal["tool_call_id"] = message.tool_call_id or ""
    if role == "assistant":
        reasoning = message.reasoning_content or message.reasoning or ""
        if reasoning:
            normal["reasoning_content"] = reasoning
        if message.tool_calls:
            normal["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return normal


def _text(content: str | list[dict[str, Any]] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for part in content:
        text = part.get("text", part.get("refusal"))
        if part.get("type") not in ("text", "refusal") or not isinstance(text, str):
            raise bad_request("unsupported content part: only text is, not images, audio or files")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: ToolCall) -> dict[str, Any]:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    return {"id": call.id or "", "type": "function", "function": {"name": call.function.name, "arguments": text}}


def read_tool(tool: ChatTool) -> Tool:
    """One tool, normalised. Raises ``GatewayRequestError`` for one that is no function."""
    if tool.type != "function":
        raise bad_request("unsupported tool type: only functions are")
    function = {
        "name": tool.function.name,
        "description": tool.function.description or "",
        "parameters": tool.function.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def refuse_unsupported(chat: LongBody) -> None:
    """Raise ``GatewayRequestError`` naming every parameter that would change what is captured."""
    named = [key for key in UNSUPPORTED if getattr(chat, key)]
    if (chat.n or 1) != 1:
        named.append("n > 1")
    if chat.modalities not in (None, [], ["text"]):
        named.append("modalities other than text")
    kind = (chat.response_format or {}).get("type", "text")
    if kind != "text":
        named.append(f"response_format of type {kind!r}" if isinstance(kind, str) else "response_format")
    if named:
        raise bad_request(f"unsupported: {', '.join(named)}; tokens are sampled freely and recorded one by one")


def why_unreadable(body: bytes, error: Exception) -> str:
    """What is wrong, and where in the whole body it is."""
    try:
        msgspec.json.decode(body, type=ChatBody)
    except UNREADABLE as found:
        return str(found)
    return str(error)


def bad_request(message: str) -> GatewayRequestError:
    """A refusal of what was sent."""
    return GatewayRequestError(message, status=400, code="invalid_request")
