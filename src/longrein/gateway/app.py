"""The gateway as an ASGI application: keys, routes, refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.aside import aside
from longrein.gateway.callers import caller_of
from longrein.gateway.delivery import Delivery
from longrein.gateway.dialect import Arrival, ChatRequest
from longrein.gateway.exchange import Exchange, Receive, Scope, Send
from longrein.gateway.keys import Keys
from longrein.gateway.routes import Count, Generate, ListModels, Route, Target, require, route, split
from longrein.gateway.session import GatewaySession
from longrein.gateway.settings import GatewaySettings
from longrein.gateway.sizes import check_sizes

Decode = Callable[[Arrival], ChatRequest]


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
        target = split(exchange.path)
        found = route(target.path, exchange.headers)
        try:
            session = self._keys.authenticate(target.secret or exchange.api_key)
        except GatewayRequestError as error:
            self.counters["wrong_key"] += 1
            await exchange.send_json(error.status, found.dialect.encode_error(error))
            return
        with session.bugs:
            try:
                require(exchange.method, found)
                with session.crowd:
                    await self._serve(exchange, session, target, found)
            except GatewayRequestError as error:
                session.count_refusal(error)
                await exchange.send_json(error.status, found.dialect.encode_error(error))

    async def _serve(self, exchange: Exchange, session: GatewaySession, target: Target, found: Route) -> None:
        if isinstance(found, Generate):
            request = await self._request(exchange, target, found.dialect.decode)
            await Delivery(exchange, session, found.dialect, request, self._settings).run()
        elif isinstance(found, Count):
            request = await self._request(exchange, target, found.dialect.decode_count)
            await exchange.send_json(200, found.dialect.encode_count(await session.count(request)))
        else:
            encode = found.dialect.encode_models if isinstance(found, ListModels) else found.dialect.encode_model
            await exchange.send_json(200, encode(self._settings.model, self._settings.context_length))

    async def _request(self, exchange: Exchange, target: Target, decode: Decode) -> ChatRequest:
        body = await exchange.body(self._settings.http.max_body_bytes, self._settings.http.body_timeout_s)
        arrival = Arrival(path=target.path, query=exchange.query, headers=exchange.headers, body=body)
        request = await aside(len(body), lambda: _read(decode, arrival))
        return msgspec.structs.replace(request, caller=caller_of(exchange.headers), size_bytes=len(body))


def _read(decode: Decode, arrival: Arrival) -> ChatRequest:
    request = decode(arrival)
    check_sizes(request)
    return request
