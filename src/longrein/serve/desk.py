"""Sessions of the dialects: those that a path names live on, every other request is one of its own."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from longrein.engines.base import Engine
from longrein.engines.render import ChatRenderer
from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import ChatRequest
from longrein.gateway.session import GatewaySession
from longrein.gateway.settings import GatewaySettings
from longrein.serve.recording import Recorder

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
UNBOUNDED = 1_000_000_000
"""Budgets are a rollout's; a server's sessions have none."""
LOOK_S = 1.0


class ClosedSession(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a named session."""

    session_id: str
    calls: int
    sampled_tokens: int
    file: str
    """Where it is recorded; empty without recording."""


class _Open:
    """A named session, and when it was last used."""

    def __init__(self, session: GatewaySession) -> None:
        self.session = session
        self.users = 0
        self.used_at_s = time.monotonic()


class Desk:
    """Opens sessions, and closes those that nobody uses any more."""

    def __init__(
        self, engine: Engine, renderer: ChatRenderer, settings: GatewaySettings, recorder: Recorder, idle_s: float
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._settings = msgspec.structs.replace(
            settings,
            max_calls=UNBOUNDED,
            max_sampled_tokens=UNBOUNDED,
            max_session_s=float(UNBOUNDED),
            max_context_refusals=UNBOUNDED,
        )
        self._recorder = recorder
        self._idle_s = idle_s
        self._open: dict[str, _Open] = {}
        self._finishing: set[asyncio.Task[ClosedSession]] = set()

    @property
    def settings(self) -> GatewaySettings:
        """Of named sessions: the run's own sampling, without budgets."""
        return self._settings

    @asynccontextmanager
    async def session(self, name: str, request: ChatRequest) -> AsyncGenerator[GatewaySession, None]:
        """The session that a request belongs to, while it is served. Without a name it is closed at the end.

        Raises:
            GatewayRequestError: a name that cannot be one, or sampling that cannot be.
        """
        if name:
            async with self._named(name) as session:
                yield session
            return
        # The same request from two clients at once is two requests, each with a sample of its own.
        session = self._new(f"request-{secrets.token_hex(8)}", as_asked(self._settings, request.asked))
        try:
            yield session
        finally:
            await asyncio.shield(self._finish(session))

    async def close(self, name: str) -> ClosedSession:
        """Close a named session, and record it. Raises :class:`GatewayRequestError` (404) for an unknown one."""
        if name not in self._open:
            raise GatewayRequestError(f"no session {name!r} is open", status=404, code="name")
        return await asyncio.shield(self._finish(self._open.pop(name).session))

    async def close_all(self) -> None:
        """Close every named session; return when those that are being closed are, too. Raises what a bug raised."""
        while self._open:
            self._finish(self._open.popitem()[1].session)
        closed = await asyncio.gather(*self._finishing, return_exceptions=True)
        for bug in closed:
            if isinstance(bug, BaseException):
                raise bug

    async def close_idle(self) -> None:
        """Until cancelled: close each session that nobody has used for a while."""
        while True:
            await asyncio.sleep(min(LOOK_S, self._idle_s))
            now_s = time.monotonic()
            for name, one in tuple(self._open.items()):
                # While another was closed this one may have been closed, and opened again, by its user.
                if self._open.get(name) is one and not one.users and now_s - one.used_at_s >= self._idle_s:
                    await self.close(name)

    @asynccontextmanager
    async def _named(self, name: str) -> AsyncGenerator[GatewaySession, None]:
        if not NAME.fullmatch(name):
            raise GatewayRequestError(
                "a session's name has up to 64 letters, digits, '_', '.' and '-'", status=400, code="session"
            )
        one = self._open.get(name)
        if one is None:
            one = self._open[name] = _Open(self._new(name, self._settings))
        one.users += 1
        try:
            yield one.session
        finally:
            one.users -= 1
            one.used_at_s = time.monotonic()

    def _new(self, session_id: str, settings: GatewaySettings) -> GatewaySession:
        return GatewaySession(session_id, self._engine, self._renderer, settings)

    def _finish(self, session: GatewaySession) -> asyncio.Task[ClosedSession]:
        """Close and record it, whether or not somebody waits for that to the end."""
        task = asyncio.create_task(self._closed(session))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    async def _closed(self, session: GatewaySession) -> ClosedSession:
        record = await session.close()
        return ClosedSession(
            session_id=session.session_id,
            calls=len(record.trace.calls),
            sampled_tokens=record.trace.sampled_tokens,
            file=await self._recorder.keep(session.session_id, record),
        )


def as_asked(settings: GatewaySettings, asked: dict[str, Any]) -> GatewaySettings:
    """Sampling as the request asks for it, under any dialect's names; up to the whole context is sampled.

    Raises:
        GatewayRequestError: a temperature or top_p that cannot be.
    """
    temperature = asked.get("temperature", 1.0)
    top_p = asked.get("top_p", asked.get("topP", 1.0))
    if not _is_number(temperature) or not 0 <= temperature <= 2:
        raise GatewayRequestError("temperature must be from 0 to 2", status=400, code="invalid_value")
    if not _is_number(top_p) or not 0 < top_p <= 1:
        raise GatewayRequestError("top_p must be above 0 and at most 1", status=400, code="invalid_value")
    return msgspec.structs.replace(
        settings,
        temperature=float(temperature) if temperature >= 1e-5 else 0.0,
        top_p=float(top_p),
        max_tokens=settings.context_length,
        # A sample of its own for the same request again.
        seed=secrets.randbits(48),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
