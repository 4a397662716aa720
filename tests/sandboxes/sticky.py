"""Sandboxes whose folders stay: what a full or broken disk does, without one."""

from __future__ import annotations

from typing import Any

from longrein.errors import SandboxError
from longrein.sandboxes.base import Sandbox, SandboxBackend, SandboxSpec


class Sticky:
    """A backend of real sandboxes that close, and then say that something is left."""

    def __init__(self, backend: SandboxBackend) -> None:
        self.backend = backend
        self.created = 0

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.created += 1
        return _StickySandbox(await self.backend.create(spec))  # type: ignore[return-value]


class _StickySandbox:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def close(self) -> None:
        await self._sandbox.close()
        raise SandboxError("/folder could not be removed; remove it by hand")
