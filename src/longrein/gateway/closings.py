"""Sessions on their way out, and what came of them: closing one again gives the same answer."""

from __future__ import annotations

import asyncio
from collections import deque

from longrein.errors import ConfigError
from longrein.gateway.session import GatewaySession, SessionRecord

KEPT_RECORDS = 64
"""Records that somebody has; whoever closes twice does so at once, and a trace is large."""


class Closings:
    """Each session closes once, in a task of its own that no caller's cancellation ends.

    What nobody has received yet is kept, and so is a bug; of what was handed over, only the latest few.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[SessionRecord]] = {}
        self._handed_over: deque[str] = deque()

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._tasks

    def begin(self, session: GatewaySession) -> None:
        """Start to close a session, whose key is dead already."""
        self._tasks[session.session_id] = asyncio.create_task(session.close())

    async def result(self, session_id: str) -> SessionRecord:
        """The record, or the session's bug raised, each time anew. For ids that are in here."""
        record = await asyncio.shield(self._tasks[session_id])
        if session_id not in self._handed_over:
            self._handed_over.append(session_id)
            if len(self._handed_over) > KEPT_RECORDS:
                self._tasks.pop(self._handed_over.popleft(), None)
        return record

    def forget(self, session_id: str) -> None:
        """Let an id be used anew. Raises :class:`ConfigError` while its session still closes."""
        task = self._tasks.get(session_id)
        if task is None:
            return
        if not task.done():
            raise ConfigError(f"session {session_id!r} is still closing; session ids must differ")
        del self._tasks[session_id]
        if session_id in self._handed_over:
            self._handed_over.remove(session_id)

    async def settle(self) -> None:
        """Wait for every one that is under way, whatever comes of it."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
