"""An engine that can be made to stand still, in vLLM's three ways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

from longrein.engines.base import EngineInfo, EngineRequest, HeardEngine, OnToken
from longrein.errors import EngineError, GatewayRequestError, GenerationAbortedError
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
        self._frozen = False
        """Whether what runs is to stand still, too."""
        self._overtaken = asyncio.Event()
        """Of the pauses that wait: set once a later command decides otherwise."""
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
        """Let nothing new begin; return once what runs is cut off (abort), done (wait) or frozen (keep).

        What an earlier pause froze goes on to its end where this one waits for it.

        Raises:
            GatewayRequestError: 409, a later pause froze what this one waits for, or a resume came.
            EngineError: the engine is gone.
        """
        self._gate.clear()
        if mode == "keep":
            self._decide(frozen=True)
        else:
            await self._empty(mode)
            self._frozen = True
        await self._carry_out()

    async def resume(self) -> None:
        """Go on with what was frozen and what waits. Raises :class:`EngineError`: the engine is gone."""
        self._gate.set()
        self._decide(frozen=False)
        await self._carry_out()

    def abort(self) -> int:
        """Cut off everything that runs; returns how many."""
        self._aborted |= self._running
        for task in self._running:
            task.cancel()
        return len(self._running)

    async def clear_cache(self) -> None:
        """Free the KV of all that does not run."""
        await asyncio.to_thread(self._switch.clear_cache)

    async def _empty(self, mode: PauseMode) -> None:
        """Return once nothing runs."""
        overtaken = self._overtaken
        if mode == "abort":
            self.abort()
        elif self._frozen:
            self._frozen = False
            await self._carry_out()
        running: set[asyncio.Task[Completion]] = set(self._running)
        later: asyncio.Task[Any] = asyncio.ensure_future(overtaken.wait())
        try:
            while running and not overtaken.is_set():
                everything: list[asyncio.Future[Any]] = [*running, later]
                await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
                running = {task for task in running if not task.done()}
        finally:
            later.cancel()
        if overtaken.is_set():
            raise GatewayRequestError(
                "a later pause or resume came before all requests had ended; pause again", status=409, code="mode"
            )

    def _decide(self, *, frozen: bool) -> None:
        self._frozen = frozen
        self._overtaken.set()
        self._overtaken = asyncio.Event()

    async def _carry_out(self) -> None:
        async with self._switching:
            try:
                # Somebody may have changed his mind while this waited.
                await asyncio.to_thread(self._switch.pause if self._frozen else self._switch.resume)
            except EngineError:
                # Who waits at the gate is to hear of it, too.
                self._gate.set()
                raise

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
