"""The server as an ASGI application: whose key, which route, which form a refusal has."""

from __future__ import annotations

import hmac

import msgspec

from longrein.errors import EngineError, GatewayRequestError
from longrein.gateway.exchange import Exchange, Receive, Scope, Send
from longrein.gateway.routes import NoRoute, route, split
from longrein.gateway.settings import HttpBounds
from longrein.serve.desk import Desk
from longrein.serve.dialects import Dialects
from longrein.serve.refusals import encode_error, engine_is_gone
from longrein.serve.routes import TokenRoute

OPEN_PATHS = ("/health", "/ping")
"""What needs no key."""
SESSIONS = "/sessions/"
CLOSE = "/close"


class ServeApp:
    """Token routes by their exact path, sessions by name, and the dialects for the rest."""

    def __init__(
        self, routes: dict[str, TokenRoute], dialects: Dialects, desk: Desk, bounds: HttpBounds, api_key: str
    ) -> None:
        self._routes = routes
        self._dialects = dialects
        self._desk = desk
        self._bounds = bounds
        self._api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = Exchange(scope, receive, send)
        found = self._routes.get(exchange.path)
        # The list of models has one path and three forms.
        foreign = "anthropic-version" in exchange.headers or "x-goog-api-key" in exchange.headers
        if exchange.path == "/v1/models" and foreign:
            found = None
        if found is not None:
            await self._serve(exchange, found)
        elif exchange.path.startswith(SESSIONS) and exchange.path.endswith(CLOSE):
            await self._serve(exchange, TokenRoute(method="POST", handle=self._close))
        else:
            await self._converse(exchange)

    async def _serve(self, exchange: Exchange, found: TokenRoute) -> None:
        try:
            self._authenticate(exchange)
            found.check_method(exchange.method)
            body = await exchange.body(self._bounds.max_body_bytes, self._bounds.body_timeout_s)
            await self._handle(found, exchange, body)
        except GatewayRequestError as error:
            await exchange.send_json(error.status, encode_error(error))

    @staticmethod
    async def _handle(found: TokenRoute, exchange: Exchange, body: bytes) -> None:
        try:
            await found.handle(exchange, body)
        except EngineError as error:
            # What is wrong with a request, its route has told.
            raise engine_is_gone(error) from error

    async def _converse(self, exchange: Exchange) -> None:
        target = split(exchange.path)
        found = route(target.path, exchange.headers)
        if target.secret and target.path == "/":
            # A gateway's session answers at its root; here it would answer for every route that there is not.
            found = NoRoute(found.dialect)
        try:
            self._authenticate(exchange)
            await self._dialects(exchange, target, found)
        except GatewayRequestError as error:
            await exchange.send_json(error.status, found.dialect.encode_error(error))

    async def _close(self, exchange: Exchange, body: bytes) -> None:
        """``POST /sessions/<name>/close``."""
        name = exchange.path.removeprefix(SESSIONS).removesuffix(CLOSE)
        await exchange.send_json(200, msgspec.json.encode(await self._desk.close(name)))

    def _authenticate(self, exchange: Exchange) -> None:
        if not self._api_key or exchange.path in OPEN_PATHS:
            return
        if not hmac.compare_digest(self._api_key.encode(), exchange.api_key.encode("utf-8", "replace")):
            raise GatewayRequestError("Incorrect API key provided.", status=401, code="invalid_api_key")
