"""The gateway: the only place where tokens are captured."""

from __future__ import annotations

import asyncio

from longrein.engines.base import Engine
from longrein.engines.render import ChatRenderer
from longrein.gateway.app import GatewayApp
from longrein.gateway.closings import Closings
from longrein.gateway.dialect import ChatReply, ChatRequest
from longrein.gateway.keys import Keys
from longrein.gateway.server import HOST, LoopbackServer
from longrein.gateway.session import GatewaySession, SessionRecord, take
from longrein.gateway.settings import GatewaySettings
from longrein.types import Endpoint, Trace


class Gateway:
    """One model endpoint for each session, on one loopback port. Belongs to the event loop that started it."""

    def __init__(self, engine: Engine, renderer: ChatRenderer, settings: GatewaySettings) -> None:
        self._engine = engine
        self._renderer = renderer
        self._settings = settings
        self._keys = Keys()
        self._closings = Closings()
        self._app = GatewayApp(self._keys, settings)
        self._server = LoopbackServer(self._app, settings.http)

    async def start(self) -> None:
        """Listen on 127.0.0.1, on a port of the kernel's choice."""
        await self._server.start()

    @property
    def port(self) -> int:
        """The port, once started."""
        return self._server.port

    @property
    def counters(self) -> dict[str, float]:
        """Requests that belong to no session, by reason."""
        return {name: float(count) for name, count in self._app.counters.items()}

    async def close(self) -> None:
        """Close every session and the port, in under a second even with streams open.

        A bug in a session that nobody has closed before is raised.
        """
        try:
            await asyncio.gather(*[self.close_session(session_id) for session_id in self._keys.open_sessions()])
        finally:
            await self._closings.settle()
            await self._server.close()

    def open_session(self, session_id: str) -> Endpoint:
        """Make a session and its secret.

        Raises:
            ConfigError: a session of that id is open.
        """
        self._closings.forget(session_id)
        secret = self._keys.issue(GatewaySession(session_id, self._engine, self._renderer, self._settings))
        return Endpoint(
            base_url=f"http://{HOST}:{self.port}/{secret}",
            api_key=secret,
            model=self._settings.model,
            port=self.port,
            context_length=self._settings.context_length,
            max_tokens=self._settings.max_tokens,
        )

    def trace(self, session_id: str) -> Trace:
        """A session's trace so far. Raises :class:`~longrein.errors.ConfigError` for one that is not open."""
        return self._keys.session(session_id).trace()

    async def complete(self, session_id: str, request: ChatRequest) -> ChatReply:
        """Ask in-process; the same code that HTTP requests reach.

        Raises:
            GatewayRequestError: what an agent would have got as an error.
        """
        return await take(self._keys.session(session_id), request)

    async def until_over(self, session_id: str) -> None:
        """Return once nothing more will come of a session: a fault of ours, or an agent that does not listen.

        Raises:
            ConfigError: no open session of that id.
        """
        await self._keys.session(session_id).ending.wait()

    async def close_session(self, session_id: str) -> SessionRecord:
        """Kill the key, cancel what is in flight, and return what was recorded.

        Closing again gives the same record, or raises the same bug; a close that is cancelled goes on all the same.

        Raises:
            ConfigError: no open session of that id, nor one closed lately.
            BugError: a bug of ours in this session that would pass for a fault of the world. Any other bug is
                raised as it is.
        """
        if session_id not in self._closings:
            self._closings.begin(self._keys.revoke(session_id))
        return await self._closings.result(session_id)
