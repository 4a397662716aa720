"""The OpenAI Responses dialect: Codex, openai-agents, and whoever sets it as an option."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import Arrival, ChatReply, ChatRequest
from longrein.gateway.dialects.chat import ChatDialect
from longrein.gateway.dialects.fold import folded
from longrein.gateway.dialects.responses.input import read_input
from longrein.gateway.dialects.responses.output import ReplyForm, echo_of, write_events, write_failure, write_response
from longrein.gateway.dialects.responses.tools import check_choice, read_tools

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "max_output_tokens", "max_tool_calls"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("tool_choice", "parallel_tool_calls", "reasoning", "text", "truncation", "service_tier"),
)
"""Parameters that are recorded as asked for."""
UNSUPPORTED = ("background", "conversation", "prompt", "stop", "top_logprobs", "logprobs", "context_management")
"""Parameters that need state, or that would change what is sampled or returned in ways that are not captured."""
SEALED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
FORM = "form"
"""The private field that holds the :class:`ReplyForm`."""


class TextFormat(msgspec.Struct, frozen=True):
    """``text.format``."""

    type: str = "text"


class TextOptions(msgspec.Struct, frozen=True):
    """``text``."""

    format: TextFormat | None = None


class ResponsesBody(msgspec.Struct, frozen=True):
    """The fields that are read with a type; the rest is looked at by name."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_output_tokens: int | None = None
    include: list[str] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    previous_response_id: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None


class ResponsesDialect:
    """See :class:`~longrein.gateway.dialect.CountingDialect`."""

    name = "responses"
    keep_alive = b": keep-alive\n\n"

    def __init__(self) -> None:
        self._openai = ChatDialect()
        """Models and error bodies are the same in both."""

    def decode(self, arrival: Arrival) -> ChatRequest:
        """Read a request."""
        try:
            raw = msgspec.json.decode(arrival.body, type=dict[str, Any])
            body = msgspec.convert(raw, ResponsesBody)
            echo = echo_of(raw)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise _bad(f"the request body is not a responses request: {error}") from error
        _refuse_unsupported(raw, body)
        check_choice(body.tool_choice)
        offer = read_tools(body.tools or [])
        messages = folded(read_input(body.instructions, body.input))
        if not messages:
            raise _bad("input is empty: send at least one item")
        asked = {key: raw[key] for key in SAMPLING if raw.get(key) is not None}
        if offer.hosted:
            asked["hosted_tools"] = list(offer.hosted)
        form = ReplyForm(echo=echo, forms=offer.forms, sealed=SEALED in (body.include or ()))
        return ChatRequest(
            messages=messages,
            tools=tuple(form.tool() for form in offer.forms.values()),
            max_tokens=body.max_output_tokens,
            stream=bool(body.stream),
            asked=asked,
            dialect=self.name,
            private={FORM: form},
        )

    def decode_count(self, arrival: Arrival) -> ChatRequest:
        """A request of ``input_tokens`` has the same fields."""
        return self.decode(arrival)

    def encode(self, reply: ChatReply, request: ChatRequest, model: str) -> bytes:
        """The whole Responses object."""
        return write_response(reply, _form(request), model)

    def encode_stream(self, reply: ChatReply, request: ChatRequest, model: str) -> tuple[bytes, ...]:
        """``response.created`` to ``response.completed`` or ``response.incomplete``."""
        return write_events(reply, _form(request), model)

    def encode_count(self, prompt_tokens: int) -> bytes:
        """The answer of ``input_tokens``."""
        return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": prompt_tokens})

    def encode_models(self, model: str, context_length: int) -> bytes:
        """OpenAI's list."""
        return self._openai.encode_models(model, context_length)

    def encode_model(self, model: str, context_length: int) -> bytes:
        """One entry of the list."""
        return self._openai.encode_model(model, context_length)

    def encode_error(self, error: GatewayRequestError) -> bytes:
        """OpenAI's error body."""
        return self._openai.encode_error(error)

    def encode_stream_error(self, error: GatewayRequestError) -> bytes:
        """``response.failed`` and ``error``."""
        return write_failure(error)


def _form(request: ChatRequest) -> ReplyForm:
    return cast("ReplyForm", request.private[FORM])


def _refuse_unsupported(raw: dict[str, Any], body: ResponsesBody) -> None:
    if body.previous_response_id:
        raise GatewayRequestError(
            "unsupported: previous_response_id; no response is stored here, send the whole conversation as input",
            status=400,
            code="previous_response_not_found",
        )
    named = [key for key in UNSUPPORTED if raw.get(key)]
    if LOGPROBS in (body.include or ()):
        named.append(f"include {LOGPROBS!r}")
    kind = body.text.format.type if body.text and body.text.format else "text"
    if kind != "text":
        named.append(f"text.format of type {kind!r}")
    if named:
        raise _bad(f"unsupported: {', '.join(named)}; tokens are sampled freely, and no state is kept")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise _bad("max_output_tokens must be at least 1")


def _bad(message: str) -> GatewayRequestError:
    return GatewayRequestError(message, status=400, code="invalid_request")
