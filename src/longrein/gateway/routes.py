"""Which dialect a path belongs to, and what it asks for."""

from __future__ import annotations

from typing import Literal

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import CountingDialect, Dialect
from longrein.gateway.dialects.chat import ChatDialect
from longrein.gateway.dialects.gemini.dialect import GeminiDialect
from longrein.gateway.dialects.messages.dialect import MessagesDialect
from longrein.gateway.dialects.responses.dialect import ResponsesDialect

CHAT: Dialect = ChatDialect()
GEMINI: CountingDialect = GeminiDialect()
MESSAGES: CountingDialect = MessagesDialect()
RESPONSES: CountingDialect = ResponsesDialect()
API_ROOTS = ("v1", "v1beta")


class Generate(msgspec.Struct, frozen=True):
    """Sample an answer."""

    dialect: Dialect
    method: Literal["POST"] = "POST"


class Count(msgspec.Struct, frozen=True):
    """Say how long the prompt is."""

    dialect: CountingDialect
    method: Literal["POST"] = "POST"


class ListModels(msgspec.Struct, frozen=True):
    """Name the one model there is."""

    dialect: Dialect
    method: Literal["GET"] = "GET"


class ShowModel(msgspec.Struct, frozen=True):
    """Describe the one model, whatever name it was asked for by."""

    dialect: Dialect
    method: Literal["GET"] = "GET"


class NoRoute(msgspec.Struct, frozen=True):
    """Nothing is here; the refusal is written in the likeliest dialect."""

    dialect: Dialect


Route = Generate | Count | ListModels | ShowModel | NoRoute

_EXACT: dict[str, Route] = {
    "/v1/chat/completions": Generate(CHAT),
    "/v1/messages": Generate(MESSAGES),
    "/v1/messages/count_tokens": Count(MESSAGES),
    "/v1/responses": Generate(RESPONSES),
    "/v1/responses/input_tokens": Count(RESPONSES),
}

_GEMINI_METHODS: dict[str, Route] = {
    "generateContent": Generate(GEMINI),
    "streamGenerateContent": Generate(GEMINI),
    "countTokens": Count(GEMINI),
}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A path taken apart."""

    secret: str
    """Empty when the path has none."""
    path: str
    """Without the secret."""


def split(path: str) -> Target:
    """``/<secret>/v1/x`` -> secret and ``/v1/x``; ``/<secret>`` -> secret and ``/``."""
    head, _, rest = path.removeprefix("/").partition("/")
    if head and head not in API_ROOTS and rest.partition("/")[0] in ("", *API_ROOTS):
        return Target(secret=head, path=f"/{rest}")
    return Target(secret="", path=path)


def route(path: str, headers: dict[str, str]) -> Route:
    """What a path (without the secret) asks for; by its headers where two dialects share it."""
    if path in _EXACT:
        return _EXACT[path]
    likely = _likely(path, headers)
    # Some clients ask for the root, to see whether anybody is there.
    if path in ("/", "/v1/models", "/v1beta/models"):
        return ListModels(likely)
    if path.startswith(("/v1/models/", "/v1beta/models/")):
        # Models may have a colon in their name, too.
        return _GEMINI_METHODS.get(path.rpartition(":")[2], ShowModel(likely))
    return NoRoute(likely)


def require(method: str, found: Route) -> None:
    """Raises :class:`GatewayRequestError` for a path that is not served, or not by this method."""
    if isinstance(found, NoRoute):
        raise GatewayRequestError("no such route", status=404, code="not_found")
    if method != found.method and (method, found.method) != ("HEAD", "GET"):
        raise GatewayRequestError(f"use {found.method} here", status=405, code="method_not_allowed")


def _likely(path: str, headers: dict[str, str]) -> Dialect:
    if path.startswith("/v1/messages") or "anthropic-version" in headers:
        return MESSAGES
    if path.startswith("/v1beta/") or "x-goog-api-key" in headers:
        return GEMINI
    return CHAT
