"""Brings one answer to the client that asked for it, streamed or whole, and learns whether it arrived."""

from __future__ import annotations

import asyncio

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import ChatReply, ChatRequest, Dialect
from longrein.gateway.exchange import Exchange
from longrein.gateway.session import GatewaySession
from longrein.gateway.settings import GatewaySettings


class Delivery:
    """One request's answer. The ticket is given back however this ends."""

    def __init__(
        self,
        exchange: Exchange,
        session: GatewaySession,
        dialect: Dialect,
        request: ChatRequest,
        settings: GatewaySettings,
    ) -> None:
        self._exchange = exchange
        self._session = session
        self._dialect = dialect
        self._request = request
        self._settings = settings

    async def run(self) -> None:
        """Ask, wait, send.

        Raises:
            GatewayRequestError: there is no answer, and nothing was sent yet.
        """
        ticket = await self._session.admit(self._request)
        self._exchange.watch()
        answer = asyncio.ensure_future(ticket.answer())
        send = self._stream if self._request.stream else self._whole
        try:
            if await send(answer):
                ticket.delivered()
                self._exchange.resets.watch(ticket.lost)
        finally:
            _discard(answer)
            ticket.leave()
            self._exchange.unwatch()

    async def _whole(self, answer: asyncio.Task[ChatReply]) -> bool:
        await self._exchange.settle(answer, None)
        if self._exchange.left:
            return False
        return await self._exchange.send_json(
            200, self._dialect.encode(answer.result(), self._request, self._settings.model)
        )

    async def _stream(self, answer: asyncio.Task[ChatReply]) -> bool:
        """Headers go out at once and comments while the engine works, so that no client gives up."""
        await self._exchange.start_stream()
        while not await self._exchange.settle(answer, self._settings.keep_alive_s):
            await self._exchange.write(self._dialect.keep_alive)
        if self._exchange.left:
            return False
        try:
            reply = answer.result()
        except GatewayRequestError as error:
            self._session.count_refusal(error)
            await self._exchange.finish(self._dialect.encode_stream_error(error))
            return False
        *events, last = self._dialect.encode_stream(reply, self._request, self._settings.model)
        await self._exchange.write(b"".join(events))
        return await self._exchange.finish(last)


def _discard(answer: asyncio.Task[ChatReply]) -> None:
    answer.cancel()
    if answer.done() and not answer.cancelled():
        # Looked at, whoever raised it: asyncio complains about errors that nobody saw.
        answer.exception()
