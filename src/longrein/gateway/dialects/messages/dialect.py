"""The Anthropic Messages dialect."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from longrein.errors import GatewayRequestError, PromptTooLongError
from longrein.gateway.dialect import Arrival, ChatReply, ChatRequest
from longrein.gateway.dialects.messages.reply import events, whole
from longrein.gateway.dialects.messages.request import MessagesBody, bad_request, conversation, tool
from longrein.gateway.dialects.stops import read_stops

ASKED = (
    *("max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "tool_choice"),
    *("thinking", "output_config", "context_management", "metadata", "service_tier", "speed"),
)
"""Parameters that are recorded as asked for."""
UNSUPPORTED = ("output_format", "mcp_servers", "container", "compaction")
"""Parameters that need constrained decoding or something that runs at Anthropic."""
NO_THREADS = "thread_unsupported_request"
"""Anthropic's own code for it: the official tool runner then sends whole conversations by itself."""
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""By HTTP status; anything else is an ``api_error``."""


class MessagesDialect:
    """See :class:`~longrein.gateway.dialect.CountingDialect`."""

    name = "messages"
    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def decode(self, arrival: Arrival) -> ChatRequest:
        """Read a request."""
        request = self.decode_count(arrival)
        if request.max_tokens is None:
            raise bad_request("max_tokens: Field required")
        if request.max_tokens < 1:
            raise bad_request("max_tokens must be at least 1")
        if request.messages[-1]["role"] == "assistant":
            raise bad_request(
                "unsupported: a last message of role assistant (prefill), since chat templates cannot leave a turn "
                "open; end messages with a user message"
            )
        return request

    def decode_count(self, arrival: Arrival) -> ChatRequest:
        """Read a request to count tokens: the same without an answer's length."""
        try:
            raw = msgspec.json.decode(arrival.body, type=dict[str, Any])
            body = msgspec.convert(raw, MessagesBody)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise bad_request(f"the request body is not a messages request: {error}") from error
        _refuse_unsupported(raw, body)
        if not body.messages:
            raise bad_request("messages is empty: send at least one")
        return ChatRequest(
            messages=conversation(body),
            tools=tuple(tool(given) for given in body.tools or []),
            max_tokens=body.max_tokens,
            stop=read_stops(body.stop_sequences),
            stream=bool(body.stream),
            asked=_asked(raw, arrival),
            dialect=self.name,
        )

    def encode(self, reply: ChatReply, request: ChatRequest, model: str) -> bytes:
        """A Message."""
        return msgspec.json.encode(whole(reply, model))

    def encode_stream(self, reply: ChatReply, request: ChatRequest, model: str) -> tuple[bytes, ...]:
        """A Message in events, ``message_stop`` last."""
        return tuple(_event(event) for event in events(reply, model))

    def encode_count(self, prompt_tokens: int) -> bytes:
        """The answer to a counting request."""
        return msgspec.json.encode({"input_tokens": prompt_tokens})

    def encode_models(self, model: str, context_length: int) -> bytes:
        """A page of one model."""
        page = {"data": [_model(model, context_length)], "has_more": False, "first_id": model, "last_id": model}
        return msgspec.json.encode(page)

    def encode_model(self, model: str, context_length: int) -> bytes:
        """The one model."""
        return msgspec.json.encode(_model(model, context_length))

    def encode_error(self, error: GatewayRequestError) -> bytes:
        """Anthropic's error body."""
        return msgspec.json.encode(_error(error))

    def encode_stream_error(self, error: GatewayRequestError) -> bytes:
        """The same as an ``error`` event."""
        return _event(_error(error))


def _refuse_unsupported(raw: dict[str, Any], body: MessagesBody) -> None:
    named = [key for key in UNSUPPORTED if raw.get(key)]
    if (body.output_config or {}).get("format"):
        named.append("output_config.format")
    if named:
        raise bad_request(f"unsupported: {', '.join(named)}; tokens are sampled freely and recorded one by one")
    if raw.get("thread"):
        raise GatewayRequestError(
            "unsupported: thread; send the whole conversation each time, without thread", status=400, code=NO_THREADS
        )


def _asked(raw: dict[str, Any], arrival: Arrival) -> dict[str, Any]:
    asked = {key: raw[key] for key in ASKED if raw.get(key) is not None}
    betas = arrival.headers.get("anthropic-beta")
    return {**asked, "betas": betas} if betas else asked


def _model(model: str, context_length: int) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model,
        "display_name": model,
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": context_length,
    }


def _error(error: GatewayRequestError) -> dict[str, Any]:
    message = str(error)
    if isinstance(error, PromptTooLongError):
        # In these words, since Claude Code looks for them.
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.context_length} maximum"
    said: dict[str, Any] = {"type": ERROR_TYPES.get(error.status, "api_error"), "message": message}
    if error.code == NO_THREADS:
        said["details"] = {"error_code": NO_THREADS}
    return {"type": "error", "error": said, "request_id": f"req_{secrets.token_hex(12)}"}


def _event(event: dict[str, Any]) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
