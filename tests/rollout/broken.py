"""Parts that fail as the world fails: real classes, sent to a real worker process."""

from __future__ import annotations

from pathlib import Path

from longrein.errors import SandboxError
from longrein.sandboxes.base import Sandbox, SandboxSpec


class NoNamespaces:
    """A sandbox backend on a machine where nothing can be started; counts its tries in a file."""

    def __init__(self, counter: Path) -> None:
        self.counter = counter

    async def create(self, spec: SandboxSpec) -> Sandbox:
        with self.counter.open("a") as file:
            file.write("x")
        raise SandboxError("no user namespaces here; enable them or use backend = 'subprocess'")
