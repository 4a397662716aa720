"""All parts of the server, opened and closed together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import msgspec

from longrein.engines.base import HeardEngine, WeightReceiver
from longrein.engines.render import ChatRenderer
from longrein.errors import ConfigError
from longrein.gateway.server import LoopbackServer
from longrein.gateway.settings import GatewaySettings
from longrein.serve.app import ServeApp
from longrein.serve.completions import CompletionsRoute
from longrein.serve.control import Control
from longrein.serve.desk import Desk
from longrein.serve.dialects import Dialects
from longrein.serve.pausing import EngineSwitch, PausableEngine
from longrein.serve.recording import FolderRecorder, NoRecorder
from longrein.serve.routes import About, TokenRoute, token_routes
from longrein.serve.served import ServedModel
from longrein.serve.token_in import GenerateRoute
from longrein.serve.tokenizing import Tokenizing
from longrein.serve.versions import VersionLabels
from longrein.serve.weights import ReadWeights, ServedWeights

MOST_PORT = 65535
MAX_BODY_BYTES = 32 * 1024 * 1024


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line decides.

    Raises:
        ConfigError: no such port, or no time at all.
    """

    host: str = "127.0.0.1"
    port: int = 0
    api_key: str = ""
    """What requests must bring; empty lets everybody in."""
    record_to: Path | None = None
    """The run directory that sessions are recorded in."""
    session_idle_s: float = 600.0
    """After so long without a request a named session is over."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= MOST_PORT:
            raise ConfigError(f"port {self.port} is none; give one from 1 to {MOST_PORT}, or 0 for a free one")
        if not 0 < self.session_idle_s < math.inf:
            raise ConfigError(f"session_idle_s is {self.session_idle_s:g}; give a number of seconds above 0")


class ServedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """The engine, and its owner's hand on it."""

    engine: HeardEngine
    receiver: WeightReceiver
    switch: EngineSwitch
    read_weights: ReadWeights


class ModelServer:
    """A server that listens."""

    def __init__(self, host: str, port: int, engine: PausableEngine, closer: asyncio.Task[None]) -> None:
        self.host = host
        self.port = port
        self._engine = engine
        self._closer = closer

    @property
    def url(self) -> str:
        """Where it listens, without ``/v1``."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def until_dead(self, look_s: float = 1.0) -> None:
        """Return never; raise :class:`~longrein.errors.EngineError` once the engine is gone."""
        while True:
            await self._engine.info()
            if self._closer.done():
                # Only a bug of ours ends it.
                self._closer.result()
            await asyncio.sleep(look_s)


@asynccontextmanager
async def open_server(
    served: ServedModel, owned: ServedEngine, renderer: ChatRenderer, gateway: GatewaySettings, settings: ServeSettings
) -> AsyncGenerator[ModelServer, None]:
    """Listen until the context is left; then every session is closed, and recorded where that was asked for.

    Raises:
        ConfigError: the address is not to be had.
    """
    engine = PausableEngine(owned.engine, owned.switch)
    bounds = msgspec.structs.replace(gateway.http, max_body_bytes=MAX_BODY_BYTES)
    recorder = FolderRecorder(settings.record_to) if settings.record_to else NoRecorder()
    own = msgspec.structs.replace(gateway, model=served.name, context_length=served.context_length, http=bounds)
    desk = Desk(engine, renderer, own, recorder, settings.session_idle_s)
    app = ServeApp(_routes(served, owned, engine, renderer), Dialects(desk), desk, bounds, settings.api_key)
    server = LoopbackServer(app, bounds, settings.host, settings.port)
    try:
        await server.start()
    except OSError as error:
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {error}; choose another port") from error
    closer = asyncio.create_task(desk.close_idle())
    try:
        yield ModelServer(settings.host, server.port, engine, closer)
    finally:
        closer.cancel()
        try:
            await desk.close_all()
        finally:
            await server.close()


def _routes(
    served: ServedModel, owned: ServedEngine, engine: PausableEngine, renderer: ChatRenderer
) -> dict[str, TokenRoute]:
    labels = VersionLabels()
    weights = ServedWeights(owned.receiver, owned.read_weights, labels)
    return token_routes(
        About(served, engine, version("longrein")),
        GenerateRoute(served, engine, labels),
        CompletionsRoute(served, engine),
        Control(engine, weights, labels),
        Tokenizing(served, renderer),
    )
