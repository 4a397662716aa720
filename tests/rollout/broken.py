"""Parts that fail as the world fails: real classes, sent to a real worker process."""

from __future__ import annotations

import time
from pathlib import Path

from longrein.errors import SandboxError
from longrein.sandboxes.base import Sandbox, SandboxSpec
from longrein.types import Endpoint, Task
from longrein.views import Outcome


class NoNamespaces:
    """A sandbox backend on a machine where nothing can be started; counts its tries in a file."""

    def __init__(self, counter: Path) -> None:
        self.counter = counter

    async def create(self, spec: SandboxSpec) -> Sandbox:
        with self.counter.open("a") as file:
            file.write("x")
        raise SandboxError("no user namespaces here; enable them or use backend = 'subprocess'")


class FactoryWithABug:
    """A session factory that raises what nobody foresaw."""

    async def create(self, *, task: Task, endpoint: Endpoint, session_id: str) -> None:
        raise AttributeError("a typo of the user's")


def divides_by_zero(completions: list[object], **_columns: object) -> list[float]:
    """A reward function with a bug."""
    return [1 / 0 for _ in completions]


def takes_an_hour(outcome: Outcome) -> float:
    """A judge that hangs; says in a file that it began."""
    Path(outcome.task.metadata["began"]).touch()
    time.sleep(3600)
    return 1.0
