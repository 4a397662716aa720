"""The Gemini dialect: ``generateContent``, ``streamGenerateContent``, ``countTokens``."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from longrein.errors import GatewayRequestError, PromptTooLongError
from longrein.gateway.dialect import Arrival, ChatReply, ChatRequest
from longrein.gateway.dialects.gemini.request import read_count, read_generate
from longrein.gateway.dialects.gemini.signature import sign
from longrein.types import Message

STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Google's names for HTTP statuses."""
METHODS = ["generateContent", "countTokens"]

JsonPart = dict[str, Any]


class GeminiDialect:
    """See :class:`~longrein.gateway.dialect.CountingDialect`."""

    name = "gemini"
    # Google's SDKs (Python, and the JavaScript one in Gemini CLI) fail on comments, but skip white space.
    keep_alive = b"\n"

    def decode(self, arrival: Arrival) -> ChatRequest:
        """Read a request. The path says whether the answer is streamed."""
        return read_generate(arrival)

    def decode_count(self, arrival: Arrival) -> ChatRequest:
        """Read a request to count."""
        return read_count(arrival)

    def encode(self, reply: ChatReply, request: ChatRequest, model: str) -> bytes:
        """The whole answer. A stream without ``alt=sse`` is a JSON array, here of one chunk."""
        parts = [part for group in _groups(reply.message, request) for part in group]
        answer = {**_chunk(parts, _head(model)), **_usage(reply)}
        answer["candidates"][0]["finishReason"] = _finish(reply)
        return msgspec.json.encode([answer] if request.private.get("array") else answer)

    def encode_stream(self, reply: ChatReply, request: ChatRequest, model: str) -> tuple[bytes, ...]:
        """Thought, text, calls; the last of them with finish reason and usage.

        Not in a chunk of their own: clients that keep chunks as history would keep an empty part.
        """
        head = _head(model)
        chunks = [_chunk(parts, head) for parts in _groups(reply.message, request)]
        chunks[-1].update(_usage(reply))
        chunks[-1]["candidates"][0]["finishReason"] = _finish(reply)
        return tuple(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks)

    def encode_count(self, prompt_tokens: int) -> bytes:
        """The answer of ``countTokens``."""
        return msgspec.json.encode({"totalTokens": prompt_tokens})

    def encode_models(self, model: str, context_length: int) -> bytes:
        """Google's list."""
        return msgspec.json.encode({"models": [_model(model, context_length)]})

    def encode_model(self, model: str, context_length: int) -> bytes:
        """One entry of the list."""
        return msgspec.json.encode(_model(model, context_length))

    def encode_error(self, error: GatewayRequestError) -> bytes:
        """Google's error body."""
        status = STATUSES.get(error.status, "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
        reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": error.code.upper()}
        detail = {**reason, "domain": "longrein"}
        body = {"code": error.status, "message": _wording(error), "status": status, "details": [detail]}
        return msgspec.json.encode({"error": body})

    def encode_stream_error(self, error: GatewayRequestError) -> bytes:
        """The bare body, not an event: it is what Google's SDKs look for between events."""
        return self.encode_error(error) + b"\n\n"


def _groups(message: Message, request: ChatRequest) -> list[list[JsonPart]]:
    """The answer's parts, by what is sent at once. Never empty."""
    thought: str = message.get("reasoning_content") or ""
    thoughts: list[JsonPart] = (
        [{"text": thought, "thought": True}] if thought and request.private.get("thoughts") else []
    )
    texts: list[JsonPart] = [{"text": message["content"]}] if message.get("content") else []
    called: list[dict[str, Any]] = message.get("tool_calls") or []
    calls = [_call(call) for call in called]
    return [group for group in (thoughts, texts, calls) if group] or [[{"text": ""}]]


def _call(call: dict[str, Any]) -> JsonPart:
    function = call["function"]
    # As it was sampled: it is a JSON object, and parsing it would only lose something.
    arguments = msgspec.Raw(function["arguments"].encode())
    return {
        "functionCall": {"id": call["id"], "name": function["name"], "args": arguments},
        "thoughtSignature": sign(call["id"]),
    }


def _head(model: str) -> dict[str, Any]:
    return {"modelVersion": model, "responseId": secrets.token_urlsafe(16)}


def _chunk(parts: list[JsonPart], head: dict[str, Any]) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}], **head}


def _finish(reply: ChatReply) -> str:
    return "MAX_TOKENS" if reply.finish_reason == "length" else "STOP"


def _usage(reply: ChatReply) -> dict[str, Any]:
    usage = {
        "promptTokenCount": reply.prompt_tokens,
        "cachedContentTokenCount": reply.cached_tokens,
        "candidatesTokenCount": reply.completion_tokens,
        "totalTokenCount": reply.prompt_tokens + reply.completion_tokens,
    }
    return {"usageMetadata": usage}


def _wording(error: GatewayRequestError) -> str:
    """Google's own words for a prompt that is too long: agents search errors for them."""
    if isinstance(error, PromptTooLongError):
        return (
            f"The input token count ({error.prompt_tokens}) exceeds the maximum number of tokens allowed "
            f"({error.context_length})."
        )
    return str(error)


def _model(model: str, context_length: int) -> dict[str, Any]:
    return {
        "name": f"models/{model}",
        "version": "1",
        "displayName": model,
        "inputTokenLimit": context_length,
        "outputTokenLimit": context_length,
        "supportedGenerationMethods": METHODS,
    }
