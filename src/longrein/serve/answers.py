"""Brings the completions of a token route to its client, whole or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Protocol

from longrein.errors import ContextLengthError, EngineError
from longrein.gateway.exchange import Exchange
from longrein.serve.generation import Delta, Generation
from longrein.serve.refusals import encode_error, of_engine

DONE = b"data: [DONE]\n\n"


class AnswerForm(Protocol):
    """How one route writes its answer."""

    def whole(self, deltas: tuple[Delta, ...]) -> bytes:
        """The JSON body; each delta is a whole completion."""
        ...

    def chunk(self, delta: Delta) -> bytes:
        """The JSON of one event. Called in order."""
        ...

    def closing(self) -> tuple[bytes, ...]:
        """JSON of what follows the last chunk."""
        ...


async def send_whole(exchange: Exchange, generation: Generation, form: AnswerForm) -> None:
    """One body, once all is there. A client that leaves has its completions cancelled.

    Raises:
        GatewayRequestError: the engine refused the request, or failed.
    """
    exchange.watch()
    try:
        async with generation:
            answer = asyncio.ensure_future(generation.whole())
            await exchange.settle(answer, None)
            if exchange.left:
                await _discard(answer)
            else:
                await exchange.send_json(200, form.whole(answer.result()))
    except (ContextLengthError, EngineError) as error:
        raise of_engine(error) from error
    finally:
        exchange.unwatch()


async def send_stream(exchange: Exchange, generation: Generation, form: AnswerForm) -> None:
    """Events as tokens come. What fails before the first of them is an ordinary refusal.

    Raises:
        GatewayRequestError: the engine refused the request, or failed before it began.
    """
    exchange.watch()
    try:
        async with generation:
            deltas = generation.deltas()
            try:
                first = await _next(exchange, deltas)
            except (ContextLengthError, EngineError) as error:
                raise of_engine(error) from error
            if first is not None:
                await exchange.start_stream()
                await _events(exchange, first, deltas, form)
    finally:
        exchange.unwatch()


async def _events(exchange: Exchange, first: Delta, deltas: AsyncGenerator[Delta, None], form: AnswerForm) -> None:
    delta: Delta | None = first
    try:
        while delta is not None:
            await exchange.write(event(form.chunk(delta)))
            delta = await _next(exchange, deltas)
    except EngineError as error:
        await exchange.finish(event(encode_error(of_engine(error))) + DONE)
        return
    await exchange.finish(b"".join(map(event, form.closing())) + DONE)


async def _next(exchange: Exchange, deltas: AsyncGenerator[Delta, None]) -> Delta | None:
    """``None`` at the end, and when the client has left."""
    step = asyncio.ensure_future(anext(deltas, None))
    await exchange.settle(step, None)
    if exchange.left:
        await _discard(step)
        return None
    return step.result()


async def _discard(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"
