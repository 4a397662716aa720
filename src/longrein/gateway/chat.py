"""The OpenAI chat-completions dialect."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import ChatReply, ChatRequest
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


class ChatBody(msgspec.Struct, frozen=True):
    """The fields that are read with a type; the rest is looked at by name."""

    messages: list[ChatMessage]
    model: str | None = None
    tools: list[ChatTool] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None


class ChatDialect:
    """See :class:`~longrein.gateway.dialect.Dialect`."""

    name = "chat"
    keep_alive = b": keep-alive\n\n"

    def decode(self, body: bytes) -> ChatRequest:
        """Read a request body."""
        try:
            raw = msgspec.json.decode(body, type=dict[str, Any])
            chat = msgspec.convert(raw, ChatBody)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise _bad(f"the request body is not a chat completion request: {error}") from error
        _refuse_unsupported(raw, chat)
        if not chat.messages:
            raise _bad("messages is empty: send at least one")
        limits = [limit for limit in (chat.max_tokens, chat.max_completion_tokens) if limit is not None]
        if any(limit < 1 for limit in limits):
            raise _bad("max_tokens must be at least 1")
        stop = [chat.stop] if isinstance(chat.stop, str) else chat.stop or []
        return ChatRequest(
            messages=tuple(_message(message) for message in chat.messages),
            tools=tuple(_tool(tool) for tool in chat.tools or []),
            max_tokens=min(limits, default=None),
            stop=tuple(text for text in stop if text),
            stream=bool(chat.stream),
            include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
            asked={key: raw[key] for key in SAMPLING if raw.get(key) is not None},
            dialect=self.name,
        )

    def encode(self, reply: ChatReply, model: str) -> bytes:
        """The whole answer."""
        choice = {"index": 0, "message": reply.message, "logprobs": None, "finish_reason": reply.finish_reason}
        head = _head("chat.completion", model)
        return msgspec.json.encode({**head, "choices": [choice], "usage": _usage(reply)})

    def encode_stream(self, reply: ChatReply, request: ChatRequest, model: str) -> tuple[bytes, ...]:
        """Role, reasoning, content, tool calls, finish reason, usage, ``[DONE]``."""
        head = _head("chat.completion.chunk", model)
        chunks = [{**head, "choices": [_choice(delta)]} for delta in _deltas(reply.message)]
        chunks.append({**head, "choices": [{**_choice({}), "finish_reason": reply.finish_reason}]})
        if request.include_usage:
            chunks.append({**head, "choices": [], "usage": _usage(reply)})
        return (*[_event(chunk) for chunk in chunks], b"data: [DONE]\n\n")

    def encode_error(self, error: GatewayRequestError) -> bytes:
        """OpenAI's error body."""
        return msgspec.json.encode(_error(error))

    def encode_stream_error(self, error: GatewayRequestError) -> bytes:
        """The same body as an event; official clients raise on it."""
        return _event(_error(error))


def _refuse_unsupported(raw: dict[str, Any], chat: ChatBody) -> None:
    named = [key for key in UNSUPPORTED if raw.get(key)]
    if (chat.n or 1) != 1:
        named.append("n > 1")
    kind = (chat.response_format or {}).get("type", "text")
    if kind != "text":
        named.append(f"response_format of type {kind!r}" if isinstance(kind, str) else "response_format")
    if named:
        raise _bad(f"unsupported: {', '.join(named)}; tokens are sampled freely and recorded one by one")


def _message(message: ChatMessage) -> Message:
    role = ROLES.get(message.role)
    if role is None:
        raise _bad(f"unsupported role; use one of: {', '.join(ROLES)}")
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
            raise _bad("unsupported content part: only text is, not images, audio or files")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: ToolCall) -> dict[str, Any]:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    return {"id": call.id or "", "type": "function", "function": {"name": call.function.name, "arguments": text}}


def _tool(tool: ChatTool) -> Tool:
    if tool.type != "function":
        raise _bad("unsupported tool type: only functions are")
    function = {
        "name": tool.function.name,
        "description": tool.function.description or "",
        "parameters": tool.function.parameters or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _deltas(message: Message) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    if message.get("reasoning_content"):
        yield {"reasoning_content": message["reasoning_content"]}
    if message.get("content"):
        yield {"content": message["content"]}
    for index, call in enumerate(message.get("tool_calls") or []):
        yield {"tool_calls": [{"index": index, **call}]}


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}


def _choice(delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}


def _usage(reply: ChatReply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _error(error: GatewayRequestError) -> dict[str, Any]:
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}


def _bad(message: str) -> GatewayRequestError:
    return GatewayRequestError(message, status=400, code="invalid_request")
