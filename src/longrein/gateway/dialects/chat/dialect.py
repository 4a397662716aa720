"""The OpenAI chat-completions dialect."""

from __future__ import annotations

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import Arrival, ChatReply, ChatRequest
from longrein.gateway.dialects.chat.reply import chunks, error_body, event, model_entry, whole
from longrein.gateway.dialects.chat.request import (
    SAMPLING,
    UNREADABLE,
    ChatMessage,
    ChatTool,
    LongBody,
    bad_request,
    read_message,
    read_tool,
    refuse_unsupported,
    why_unreadable,
)
from longrein.gateway.dialects.fold import folded
from longrein.gateway.dialects.stops import read_stops
from longrein.gateway.known import Known

_BODY = msgspec.json.Decoder(LongBody)
_MESSAGE = msgspec.json.Decoder(ChatMessage)
_TOOLS = msgspec.json.Decoder(list[ChatTool] | None)


class ChatDialect:
    """See :class:`~longrein.gateway.dialect.Dialect`. Remembers what it read lately, whoever sent it."""

    name = "chat"
    keep_alive = b": keep-alive\n\n"

    def __init__(self) -> None:
        self._messages = Known(lambda text: read_message(_MESSAGE.decode(text)))
        self._tools = Known(lambda text: tuple(read_tool(tool) for tool in _TOOLS.decode(text) or []))

    def clear(self) -> None:
        """Let go of the messages and tools that are kept because agents send them again."""
        self._messages.clear()
        self._tools.clear()

    def decode(self, arrival: Arrival) -> ChatRequest:
        """Read a request."""
        try:
            chat = _BODY.decode(arrival.body)
            messages = tuple(map(self._messages.read, chat.messages))
            tools = self._tools.read(chat.tools)
        except UNREADABLE as error:
            raise bad_request(
                f"the request body is not a chat completion request: {why_unreadable(arrival.body, error)}"
            ) from error
        refuse_unsupported(chat)
        if not messages:
            raise bad_request("messages is empty: send at least one")
        limits = [limit for limit in (chat.max_tokens, chat.max_completion_tokens) if limit is not None]
        if any(limit < 1 for limit in limits):
            raise bad_request("max_tokens must be at least 1")
        return ChatRequest(
            messages=folded(messages),
            tools=tools,
            max_tokens=min(limits, default=None),
            stop=read_stops([chat.stop] if isinstance(chat.stop, str) else chat.stop),
            stream=bool(chat.stream),
            include_usage=bool(chat.stream_options and chat.stream_options.include_usage),
            asked={key: value for key in SAMPLING if (value := getattr(chat, key)) is not None},
            dialect=self.name,
        )

    def encode(self, reply: ChatReply, request: ChatRequest, model: str) -> bytes:
        """The whole answer."""
        return msgspec.json.encode(whole(reply, model))

    def encode_stream(self, reply: ChatReply, request: ChatRequest, model: str) -> tuple[bytes, ...]:
        """Role, reasoning, content, tool calls, finish reason, usage, ``[DONE]``."""
        events = map(event, chunks(reply, model, include_usage=request.include_usage))
        return (*events, b"data: [DONE]\n\n")

    def encode_models(self, model: str, context_length: int) -> bytes:
        """OpenAI's list, with vLLM's ``max_model_len``."""
        return msgspec.json.encode({"object": "list", "data": [model_entry(model, context_length)]})

    def encode_model(self, model: str, context_length: int) -> bytes:
        """One entry of the list."""
        return msgspec.json.encode(model_entry(model, context_length))

    def encode_error(self, error: GatewayRequestError) -> bytes:
        """OpenAI's error body."""
        return msgspec.json.encode(error_body(error))

    def encode_stream_error(self, error: GatewayRequestError) -> bytes:
        """The same body as an event; official clients raise on it."""
        return event(error_body(error))
