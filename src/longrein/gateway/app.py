"""The gateway as an ASGI application: keys and routes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.chat import ChatDialect
from longrein.gateway.delivery import Delivery
from longrein.gateway.dialect import Dialect
from longrein.gateway.exchange import Exchange, Receive, Scope, Send
from longrein.gateway.keys import Keys
from longrein.gateway.session import GatewaySession
from longrein.gateway.settings import GatewaySettings

MODELS = "/v1/models"
CHAT = "/v1/chat/completions"
DIALECTS: dict[str, Dialect] = {CHAT: ChatDialect()}
"""Route -> dialect. Errors on other routes are written in chat form."""


class GatewayApp:
    """Written by hand: a framework costs more per request than everything else here."""

    def __init__(self, keys: Keys, settings: GatewaySettings) -> None:
        self._keys = keys
        self._settings = settings
        self.counters: Counter[str] = Counter()
        """Requests that belong to no session."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = Exchange(scope, receive, send)
        target = _split(exchange.path)
        dialect = DIALECTS.get(target.route, DIALECTS[CHAT])
        try:
            session = self._keys.authenticate(target.secret or exchange.bearer)
        except GatewayRequestError as error:
            self.counters["wrong_key"] += 1
            await exchange.send_json(error.status, dialect.encode_error(error))
            return
        with session.bugs:
            try:
                await self._serve(exchange, session, target.route)
            except GatewayRequestError as error:
                session.count_refusal(error)
                await exchange.send_json(error.status, dialect.encode_error(error))

    async def _serve(self, exchange: Exchange, session: GatewaySession, route: str) -> None:
        if route == MODELS:
            _require(exchange, "GET")
            await exchange.send_json(200, self._models())
        elif route in DIALECTS:
            _require(exchange, "POST")
            dialect = DIALECTS[route]
            request = dialect.decode(await exchange.body(self._settings.max_body_bytes))
            await Delivery(exchange, session, dialect, request, self._settings).run()
        else:
            raise GatewayRequestError("no such route", status=404, code="not_found")

    def _models(self) -> bytes:
        model: dict[str, Any] = {
            "id": self._settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "longrein",
            "max_model_len": self._settings.context_length,
        }
        return msgspec.json.encode({"object": "list", "data": [model]})


class _Target(msgspec.Struct, frozen=True, kw_only=True):
    secret: str
    """Empty when the path has none."""
    route: str


def _split(path: str) -> _Target:
    """``/<secret>/v1/x`` -> secret and route."""
    head, _, rest = path.removeprefix("/").partition("/")
    if head != "v1" and rest.startswith("v1/"):
        return _Target(secret=head, route=f"/{rest}")
    return _Target(secret="", route=path)


def _require(exchange: Exchange, method: str) -> None:
    if exchange.method != method:
        raise GatewayRequestError(f"use {method} here", status=405, code="method_not_allowed")
