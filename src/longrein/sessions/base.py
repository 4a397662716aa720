"""What a session is: one attempt at a task, from an empty sandbox to a verdict, closed for certain."""

from __future__ import annotations

from typing import Protocol

import msgspec

from longrein.types import Endpoint, Finding, Score, Task


class AgentExit(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent process ended. An exit code is never success: only the verifier says that."""

    exit_code: int
    timed_out: bool
    output_tail: str
    duration_s: float
    findings: tuple[Finding, ...] = ()
    """What was found on its run: limits it hit, processes it left."""


class LoopOwningSession(Protocol):
    """A session whose agent runs its own loop; we wait, then judge what it left behind."""

    async def run(self) -> AgentExit:
        """Run the agent to its end or its timeout; every process of it is dead on return.

        Raises:
            HarnessError: the agent could not be started.
            SandboxError: the sandbox died.
        """
        ...

    async def verify(self) -> Score:
        """Judge the work directory in a second sandbox. Unscorable is ``Score(reward=None, reason=...)``."""
        ...

    async def close(self) -> None:
        """Remove everything. Safe to call twice."""
        ...


class SessionFactory(Protocol):
    """Makes sessions. Picklable: it travels to the spawned rollout worker."""

    async def create(self, *, task: Task, endpoint: Endpoint, session_id: str) -> LoopOwningSession:
        """Raises :class:`~longrein.errors.SandboxError` when the sandbox cannot be started."""
        ...
