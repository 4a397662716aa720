"""An engine's process, step by step: what is under way is so for certain, whoever is faster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from longrein.engines.local import wire
from longrein.engines.local.client import LocalEngine
from longrein.engines.local.process import LocalEngineProcess
from longrein.errors import EngineRequestError
from tests.engines.local.reference import ids, request

ENOUGH = 200
"""Steps within which all that tests wait for has come: a few tokens of each request."""


class Stepped:
    """A paused engine and one of its clients."""

    def __init__(self, process: LocalEngineProcess, engine: LocalEngine) -> None:
        self._process = process
        self._engine = engine

    async def step(self) -> None:
        """One pass. On return the client has heard all of it."""
        await asyncio.to_thread(self._step)
        await self.heard()

    async def until(self, met: Callable[[], object]) -> None:
        """Step until it is so."""
        for _ in range(ENOUGH):
            if met():
                return
            await self.step()
        raise AssertionError("it never came to that")

    async def heard(self) -> None:
        """Return when the engine has read all that was sent, and the client all that the engine has said."""
        # Refused at once, paused or not, and in order.
        with pytest.raises(EngineRequestError):
            await self._engine.generate(request("nothing", ids([])))

    def _step(self) -> None:
        assert self._process._running
        child = self._process._running.child
        # In one piece, so that the engine finds the second when it looks again after one pass.
        child._owner.sendall(wire.pack(wire.Resume()) + wire.pack(wire.Pause()))
        for _ in range(2):
            assert isinstance(child.hear(120.0), wire.Obeyed)


@asynccontextmanager
async def stepped(process: LocalEngineProcess, engine: LocalEngine) -> AsyncIterator[Stepped]:
    """Computes only what it is told to; goes on by itself afterwards."""
    await asyncio.to_thread(process.pause)
    try:
        yield Stepped(process, engine)
    finally:
        await asyncio.to_thread(process.resume)
