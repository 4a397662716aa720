"""Gemini requests as :class:`ChatRequest`."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import msgspec

from longrein.gateway.dialect import Arrival, ChatRequest
from longrein.gateway.dialects.gemini.contents import Conversation, bad, system_message
from longrein.gateway.dialects.gemini.names import camel
from longrein.gateway.dialects.gemini.tools import read_tools
from longrein.gateway.dialects.stops import read_stops

SAMPLING = (
    *("temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "seed", "thinkingConfig"),
    *("presencePenalty", "frequencyPenalty"),
)
"""Parameters that are recorded as asked for."""
UNSUPPORTED = (
    *("responseSchema", "responseJsonSchema", "_responseJsonSchema", "responseLogprobs", "logprobs"),
    *("speechConfig", "imageConfig"),
)
"""Parameters that would change what is sampled or returned in ways that are not captured."""
PLAIN = "text/plain"


class GeminiBody(msgspec.Struct, frozen=True, rename="camel"):
    """A request to generate."""

    contents: list[dict[str, Any]]
    system_instruction: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_config: dict[str, Any] | None = None
    generation_config: dict[str, Any] | None = None
    cached_content: str | None = None


class CountBody(msgspec.Struct, frozen=True, rename="camel"):
    """A request to count: either a whole request to generate, or contents alone."""

    generate_content_request: dict[str, Any] | None = None


class ThinkingConfig(msgspec.Struct, frozen=True, rename="camel"):
    """``thinkingConfig``, as far as it changes the answer's form."""

    include_thoughts: bool | None = None


class GenerationConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of ``generationConfig`` that are read with a type."""

    max_output_tokens: int | None = None
    stop_sequences: list[str] | None = None
    candidate_count: int | None = None
    response_mime_type: str | None = None
    response_modalities: list[str] | None = None
    thinking_config: dict[str, Any] | None = None


def read_generate(arrival: Arrival) -> ChatRequest:
    """A request for an answer.

    Raises:
        GatewayRequestError: malformed, or asks for something unsupported.
    """
    streams = arrival.path.endswith(":streamGenerateContent")
    events = streams and _alt(arrival.query) == "sse"
    try:
        return _request(_raw(arrival), stream=events, private={"array": streams and not events})
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad(f"the request body is not a generateContent request: {error}") from error


def read_count(arrival: Arrival) -> ChatRequest:
    """A request for the length of a prompt. Raises as :func:`read_generate` does."""
    try:
        raw = _raw(arrival)
        whole = msgspec.convert(raw, CountBody).generate_content_request
        return _request(raw if whole is None else camel(whole), stream=False, private={})
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad(f"the request body is not a countTokens request: {error}") from error


def _raw(arrival: Arrival) -> dict[str, Any]:
    return camel(msgspec.json.decode(arrival.body, type=dict[str, Any]))


def _alt(query: str) -> str:
    fields = parse_qs(query)
    return (fields.get("alt") or fields.get("$alt") or [""])[0]


def _request(raw: dict[str, Any], *, stream: bool, private: dict[str, Any]) -> ChatRequest:
    body = msgspec.convert(raw, GeminiBody)
    asked = camel(body.generation_config or {})
    config = msgspec.convert(asked, GenerationConfig)
    thinking = msgspec.convert(camel(config.thinking_config or {}), ThinkingConfig)
    _refuse_unsupported(body, asked, config)
    if not body.contents:
        raise bad("contents is empty: send at least one")
    if config.max_output_tokens is not None and config.max_output_tokens < 1:
        raise bad("maxOutputTokens must be at least 1")
    conversation = Conversation()
    if body.system_instruction is not None:
        conversation.messages.append(system_message(body.system_instruction))
    for content in body.contents:
        conversation.add(content)
    wishes: dict[str, Any] = {name: asked[name] for name in SAMPLING if asked.get(name) is not None}
    if body.tool_config is not None:
        wishes["toolConfig"] = body.tool_config
    return ChatRequest(
        messages=tuple(conversation.messages),
        tools=read_tools(body.tools or []),
        max_tokens=config.max_output_tokens,
        stop=read_stops(config.stop_sequences),
        stream=stream,
        asked=wishes,
        dialect="gemini",
        private={**private, "thoughts": bool(thinking.include_thoughts)},
    )


def _refuse_unsupported(body: GeminiBody, asked: dict[str, Any], config: GenerationConfig) -> None:
    named = [name for name in UNSUPPORTED if asked.get(name)]
    if body.cached_content:
        named.append("cachedContent")
    if (config.candidate_count or 1) != 1:
        named.append("candidateCount > 1")
    if (config.response_mime_type or PLAIN) != PLAIN:
        named.append("responseMimeType other than text/plain")
    if any(modality.upper() != "TEXT" for modality in config.response_modalities or []):
        named.append("responseModalities other than TEXT")
    if named:
        raise bad(f"unsupported: {', '.join(named)}; tokens are sampled freely and recorded one by one")
