"""Who drives the sessions of a run; chosen once, picklable."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import msgspec

from longrein.engines.render import ChatRenderer
from longrein.gateway.gateway import Gateway
from longrein.gateway.settings import GatewaySettings
from longrein.rollout.attempt import Driver
from longrein.rollout.driver import LoopOwningDriver
from longrein.rollout.recorded import RecordedElsewhereDriver
from longrein.rollout.white_box import TurnLimits, WhiteBoxDriver
from longrein.sessions.base import SessionFactory
from longrein.sessions.openenv import OpenEnvSessions
from longrein.sessions.openenv_types import HarnessAdapter


class PolicyClock:
    """The version of the weights that the engine samples with, as far as we were told."""

    def __init__(self) -> None:
        self.policy_version = 0


class DriverParts(msgspec.Struct, frozen=True, kw_only=True):
    """What there is for a driver to work with."""

    gateway: Gateway
    renderer: ChatRenderer
    settings: GatewaySettings
    clock: PolicyClock
    max_inflight: int
    max_retries: int


class Driving(Protocol):
    """Opens a driver; picklable."""

    def open(self, parts: DriverParts) -> AbstractAsyncContextManager[Driver]:
        """A driver, and whatever it needs, closed on exit."""
        ...


class AgentLoops(msgspec.Struct, frozen=True, kw_only=True):
    """Agents run their own loops against our gateway."""

    factory: SessionFactory

    @asynccontextmanager
    async def open(self, parts: DriverParts) -> AsyncGenerator[Driver, None]:
        """See :class:`Driving`."""
        yield LoopOwningDriver(parts.gateway, self.factory, parts.max_retries)


class WhiteBox(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter's loop asks the gateway for every turn."""

    sessions: OpenEnvSessions
    adapter: HarnessAdapter

    @asynccontextmanager
    async def open(self, parts: DriverParts) -> AsyncGenerator[Driver, None]:
        """See :class:`Driving`."""
        limits = TurnLimits(
            max_turns=parts.settings.max_calls,
            max_tokens=parts.settings.max_tokens,
            temperature=parts.settings.temperature,
        )
        yield WhiteBoxDriver(
            gateway=parts.gateway,
            sessions=self.sessions,
            adapter=self.adapter,
            limits=limits,
            max_threads=parts.max_inflight,
            max_retries=parts.max_retries,
        )


class RecordedElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """Agents run their own loops against an endpoint of somebody else's, who recorded their tokens."""

    sessions: OpenEnvSessions

    @asynccontextmanager
    async def open(self, parts: DriverParts) -> AsyncGenerator[Driver, None]:
        """See :class:`Driving`."""
        yield RecordedElsewhereDriver(
            sessions=self.sessions,
            vocab_size=parts.renderer.vocab_size,
            policy_version=lambda: parts.clock.policy_version,
            max_threads=parts.max_inflight,
            max_retries=parts.max_retries,
        )
