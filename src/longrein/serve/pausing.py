"""An engine that can be made to stand still, in vLLM's three ways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from longrein.engines.base import EngineInfo, EngineRequest, HeardEngine, OnToken
from longrein.errors import GenerationAbortedError
from longrein.types import Completion

PauseMode = Literal["abort", "wait", "keep"]


class EngineSwitch(Protocol):
    """The owner's hand on the engine. Each method blocks until it is so."""

    def pause(self) -> None:
        """Compute nothing."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...

    def clear_cache(self) -> None:
        """Free the KV of all that does not run."""
        ...


class PausableEngine:
    """A :class:`~longrein.engines.base.HeardEngine` behind a gate; requests wait there while it is closed."""

    def __init__(self, engine: HeardEngine, switch: EngineSwitch) -> None:
        self._engine = engine
        self._switch = switch
        self._gate = asyncio.Event()
        self._gate.set()
        self._switching = asyncio.Lock()
        self._running: set[asyncio.Task[Completion]] = set()
        self._aborted: set[asyncio.Task[Completion]] = set()

    @property
    def is_paused(self) -> bool:
        """Nothing new begins."""
        return not self._gate.is_set()

    async def info(self) -> EngineInfo:
        """See :meth:`longrein.engines.base.Engine.info`."""
        return await self._engine.info()

    async def generate(self, request: EngineRequest) -> Completion:
        """See :meth:`longrein.engines.base.Engine.generate`.

        Raises:
            GenerationAbortedError: a pause or :meth:`abort` cut it off.
        """
        return await self._admit(lambda: self._engine.generate(request))

    async def generate_heard(self, request: EngineRequest, on_token: OnToken) -> Completion:
        """The same, token by token; what was heard before an abort is what was sampled."""
        return await self._admit(lambda: self._engine.generate_heard(request, on_token))

    async def forget(self, conversation_id: str) -> None:
        """See :meth:`longrein.engines.base.Engine.forget`."""
        await self._engine.forget(conversation_id)

    async def close(self) -> None:
        """See :meth:`longrein.engines.base.Engine.close`."""
        await self._engine.close()

    async def pause(self, mode: PauseMode) -> None:
        """Let nothing new begin; return once what runs is cut off (abort), done (wait) or frozen (keep)."""
        self._gate.clear()
        if mode == "abort":
            self.abort()
        if mode != "keep" and self._running:
            await asyncio.wait(set(self._running))
        await self._switch_over()

    async def resume(self) -> None:
        """Go on with what was frozen and what waits."""
        self._gate.set()
        await self._switch_over()

    def abort(self) -> int:
        """Cut off everything that runs; returns how many."""
        self._aborted |= self._running
        for task in self._running:
            task.cancel()
        return len(self._running)

    async def clear_cache(self) -> None:
        """Free the KV of all that does not run."""
        await asyncio.to_thread(self._switch.clear_cache)

    async def _switch_over(self) -> None:
        async with self._switching:
            # Somebody may have changed his mind while this waited.
            await asyncio.to_thread(self._switch.pause if self.is_paused else self._switch.resume)

    async def _admit(self, start: Callable[[], Awaitable[Completion]]) -> Completion:
        await self._gate.wait()
        task = asyncio.ensure_future(_run(start))
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task not in self._aborted or _cancelled_ourselves():
                raise
            raise GenerationAbortedError("the generation was cut off by a pause; ask again after the resume") from None
        finally:
            task.cancel()
            self._running.discard(task)
            self._aborted.discard(task)


async def _run(start: Callable[[], Awaitable[Completion]]) -> Completion:
    return await start()


def _cancelled_ourselves() -> bool:
    """Whether the caller's own task was cancelled, and not only the one that it waits for."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
