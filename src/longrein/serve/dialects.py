"""The agents' dialects, in the gateway's own code, before sessions that nobody has to open."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.aside import aside
from longrein.gateway.callers import caller_of
from longrein.gateway.delivery import Delivery
from longrein.gateway.dialect import Arrival, ChatRequest
from longrein.gateway.exchange import Exchange
from longrein.gateway.routes import Count, Generate, ListModels, Route, Target, require
from longrein.gateway.session import GatewaySession
from longrein.gateway.sizes import check_sizes
from longrein.serve.desk import Desk


class Dialects:
    """Serves chat completions, responses, messages and Gemini."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def __call__(self, exchange: Exchange, target: Target, found: Route) -> None:
        """Answer one request; ``target.secret`` is the session's name, or empty.

        Raises:
            GatewayRequestError: it cannot be served.
        """
        settings = self._desk.settings
        require(exchange.method, found)
        if isinstance(found, Generate):
            request = await self._read(exchange, target, found)
            async with self._desk.session(target.secret, request) as session:
                with refusals_counted(session), session.crowd:
                    await Delivery(exchange, session, found.dialect, request, settings).run()
        elif isinstance(found, Count):
            request = await self._read(exchange, target, found)
            async with self._desk.session(target.secret, request) as session:
                await exchange.send_json(200, found.dialect.encode_count(await session.count(request)))
        else:
            encode = found.dialect.encode_models if isinstance(found, ListModels) else found.dialect.encode_model
            await exchange.send_json(200, encode(settings.model, settings.context_length))

    async def _read(self, exchange: Exchange, target: Target, found: Generate | Count) -> ChatRequest:
        bounds = self._desk.settings.http
        body = await exchange.body(bounds.max_body_bytes, bounds.body_timeout_s)
        arrival = Arrival(path=target.path, query=exchange.query, headers=exchange.headers, body=body)
        request = await aside(len(body), lambda: _decode(found, arrival))
        return msgspec.structs.replace(request, caller=caller_of(exchange.headers), size_bytes=len(body))


@contextmanager
def refusals_counted(session: GatewaySession) -> Generator[None]:
    """A refusal is written down with its session, and passes."""
    try:
        yield
    except GatewayRequestError as error:
        session.count_refusal(error)
        raise


def _decode(found: Generate | Count, arrival: Arrival) -> ChatRequest:
    request = found.dialect.decode(arrival) if isinstance(found, Generate) else found.dialect.decode_count(arrival)
    check_sizes(request)
    return request
