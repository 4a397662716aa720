"""Completions of one request under way: several prompts or choices at once, heard token by token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

import msgspec

from longrein.engines.base import EngineRequest, HeardEngine, SampledToken
from longrein.errors import GenerationAbortedError

Finish = Literal["stop", "length", "abort"]


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one completion."""

    index: int
    tokens: tuple[SampledToken, ...]
    finish_reason: Finish | None
    """``None`` while it goes on."""
    cached_tokens: int = 0
    """Once it has ended: prompt tokens that the engine had in its cache."""


class _Choice:
    """One completion: what it has so far, and how much of it was told."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.cached_tokens = 0
        self._tokens: list[SampledToken] = []
        self._told = 0
        self._end_told = False
        self.finish: Finish | None = None

    @property
    def has_news(self) -> bool:
        return self._told < len(self._tokens) or (self.finish is not None and not self._end_told)

    @property
    def is_over(self) -> bool:
        """Ended, and all of it told."""
        return self.finish is not None and not self.has_news

    def hear(self, token: SampledToken) -> None:
        self._tokens.append(token)

    def tell(self) -> Delta:
        tokens = tuple(self._tokens[self._told :])
        self._told = len(self._tokens)
        self._end_told = self.finish is not None
        return Delta(index=self._index, tokens=tokens, finish_reason=self.finish, cached_tokens=self.cached_tokens)


class Generation:
    """Completions that were asked for together. Entering starts them, leaving cancels what still runs."""

    def __init__(self, engine: HeardEngine, requests: Sequence[EngineRequest]) -> None:
        self._engine = engine
        self._requests = requests
        self._news = asyncio.Event()
        self._choices = [_Choice(index) for index in range(len(requests))]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Generation:
        """Start all of them."""
        pairs = zip(self._choices, self._requests, strict=True)
        self._tasks = [asyncio.create_task(self._run(choice, request)) for choice, request in pairs]
        return self

    async def __aexit__(self, *error: object) -> None:
        """Cancel the rest."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def whole(self) -> tuple[Delta, ...]:
        """Every completion, once all have ended.

        Raises:
            ContextLengthError: see :meth:`longrein.engines.base.Engine.generate`.
            EngineError: the same; of the first completion that failed.
        """
        await asyncio.gather(*self._tasks)
        return tuple(choice.tell() for choice in self._choices)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What is new, as it comes, until all have ended. Raises as :meth:`whole` does."""
        while not all(choice.is_over for choice in self._choices):
            await self._news.wait()
            self._news.clear()
            for task in self._tasks:
                if task.done():
                    task.result()
            for choice in self._choices:
                if choice.has_news:
                    yield choice.tell()

    async def _run(self, choice: _Choice, request: EngineRequest) -> None:
        def hear(token: SampledToken) -> None:
            choice.hear(token)
            self._news.set()

        try:
            completion = await self._engine.generate_heard(request, hear)
            choice.cached_tokens = request.prompt_ids.size - completion.prefill_tokens
            choice.finish = completion.finish_reason
        except GenerationAbortedError:
            choice.finish = "abort"
        finally:
            self._news.set()
