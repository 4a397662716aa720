"""Everything that makes rollouts, opened together: engine client, gateway, driver."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from longrein.engines.base import Engine, EngineSpec
from longrein.engines.render import ChatRenderer
from longrein.engines.template import ChatTokenizer
from longrein.gateway.collector import loaded_stays
from longrein.gateway.gateway import Gateway
from longrein.gateway.settings import GatewaySettings
from longrein.rollout.attempt import Driver
from longrein.rollout.driving import AgentLoops, DriverParts, Driving, PolicyClock
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


class GatewayParts(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to decide of a gateway and the sessions before it; picklable."""

    gateway: GatewaySettings
    driving: Driving
    max_inflight: int = 8
    max_retries: int = 1


class RuntimeSettings(GatewayParts, frozen=True, kw_only=True):
    """What a process needs to make rollouts; picklable."""

    engine: EngineSpec
    renderer: RendererSource


class RolloutRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """The opened parts."""

    engine: Engine
    renderer: ChatRenderer
    gateway: Gateway
    driver: Driver
    clock: PolicyClock
    """For whoever hears of new weights to set."""


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
        async with _opened(engine, renderer, settings) as runtime:
            yield runtime
    finally:
        await engine.close()


@asynccontextmanager
async def open_gateway(
    engine: Engine, renderer: ChatRenderer, settings: GatewaySettings, factory: SessionFactory, max_retries: int = 1
) -> AsyncGenerator[RolloutRuntime, None]:
    """Start a gateway before an engine that is already connected, for agents that run their own loops."""
    parts = GatewayParts(gateway=settings, driving=AgentLoops(factory=factory), max_retries=max_retries)
    async with _opened(engine, renderer, parts) as runtime:
        yield runtime


@asynccontextmanager
async def _opened(
    engine: Engine, renderer: ChatRenderer, settings: GatewayParts
) -> AsyncGenerator[RolloutRuntime, None]:
    gateway = Gateway(engine, renderer, settings.gateway)
    clock = PolicyClock()
    await gateway.start()
    try:
        parts = DriverParts(
            gateway=gateway,
            renderer=renderer,
            settings=settings.gateway,
            clock=clock,
            max_inflight=settings.max_inflight,
            max_retries=settings.max_retries,
        )
        async with settings.driving.open(parts) as driver:
            with loaded_stays():
                yield RolloutRuntime(engine=engine, renderer=renderer, gateway=gateway, driver=driver, clock=clock)
    finally:
        await gateway.close()
