"""Everything that makes rollouts, opened together: engine client, gateway, driver."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from longrein.engines.base import Engine, EngineSpec
from longrein.engines.render import ChatRenderer
from longrein.engines.template import ChatTokenizer
from longrein.gateway.gateway import Gateway
from longrein.gateway.settings import GatewaySettings
from longrein.rollout.driver import Driver, LoopOwningDriver
from longrein.sessions.base import SessionFactory


class RendererSource(Protocol):
    """How conversations become tokens; picklable."""

    def load(self) -> ChatRenderer:
        """Make the renderer. Raises :class:`~longrein.errors.RenderError`."""
        ...


class RendererSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations become tokens: picklable arguments of :meth:`ChatRenderer.load`."""

    model: str
    chat_template: str | None = None
    """Jinja text used in place of the tokenizer's own template."""
    tool_parser: str = "auto"
    renderer: str = "auto"

    def load(self) -> ChatRenderer:
        """Load tokenizer and template. Raises :class:`~longrein.errors.RenderError`."""
        return ChatRenderer.load(
            self.model, chat_template=self.chat_template, tool_parser=self.tool_parser, renderer=self.renderer
        )


class TokenizerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The same with a tokenizer that the caller has loaded."""

    tokenizer: ChatTokenizer
    chat_template: str | None = None
    """Jinja text used in place of the tokenizer's own template."""
    tool_parser: str = "auto"
    renderer: str = "auto"

    def load(self) -> ChatRenderer:
        """Render with this tokenizer. Raises :class:`~longrein.errors.RenderError`."""
        return ChatRenderer.of(
            self.tokenizer, chat_template=self.chat_template, tool_parser=self.tool_parser, renderer=self.renderer
        )


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs to make rollouts; picklable."""

    engine: EngineSpec
    renderer: RendererSource
    gateway: GatewaySettings
    factory: SessionFactory
    max_inflight: int = 8
    max_retries: int = 1


class RolloutRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """The opened parts."""

    engine: Engine
    renderer: ChatRenderer
    gateway: Gateway
    driver: Driver


@asynccontextmanager
async def open_runtime(settings: RuntimeSettings) -> AsyncGenerator[RolloutRuntime, None]:
    """Connect to the engine and start the gateway; both are closed on exit.

    Raises:
        EngineError: nothing answers at the engine's address.
        RenderError: the model's chat template cannot be used.
    """
    renderer = settings.renderer.load()
    engine = await settings.engine.connect()
    try:
        async with open_gateway(engine, renderer, settings.gateway, settings.factory, settings.max_retries) as runtime:
            yield runtime
    finally:
        await engine.close()


@asynccontextmanager
async def open_gateway(
    engine: Engine, renderer: ChatRenderer, settings: GatewaySettings, factory: SessionFactory, max_retries: int = 1
) -> AsyncGenerator[RolloutRuntime, None]:
    """Start a gateway before an engine that is already connected."""
    gateway = Gateway(engine, renderer, settings)
    await gateway.start()
    try:
        driver = LoopOwningDriver(gateway, factory, max_retries)
        yield RolloutRuntime(engine=engine, renderer=renderer, gateway=gateway, driver=driver)
    finally:
        await gateway.close()
