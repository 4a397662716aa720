"""An agent's session: its sandbox, its process, and the verdict on what it left behind."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

from msgspec.structs import replace

from longrein.errors import HarnessError, SandboxError
from longrein.harnesses.base import Harness
from longrein.sandboxes.base import ExecResult, Sandbox, SandboxBackend, SandboxLimits, SandboxSpec, WorkTree
from longrein.sandboxes.closing import close_or_log
from longrein.sessions.base import AgentExit
from longrein.sessions.integrity import findings_on
from longrein.tasks.sound import require_sound
from longrein.tasks.verifier import SandboxedTests, Verifier
from longrein.types import Endpoint, Launch, Score, Task

_CREATE_TRIES = 3
_NO_SUCH_COMMAND = 127
_LOOK_UP_TIMEOUT_S = 20.0
_TAIL_CHARACTERS = 4000


class AgentSessionFactory:
    """Makes sessions of one agent in one kind of sandbox. Picklable.

    Args:
        harness: the recipe for the agent.
        backend: makes a sandbox for the agent, and a second one for the verifier.
        limits: bounds on the agent's.
        verifier: judges what it left; by default the task's hidden tests, within the same bounds.
    """

    def __init__(
        self,
        *,
        harness: Harness,
        backend: SandboxBackend,
        limits: SandboxLimits | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self._harness = harness
        self._backend = backend
        self._limits = limits or SandboxLimits()
        self._verifier: Verifier = verifier or SandboxedTests(limits=self._limits)

    def check(self, task: Task) -> None:
        """Raise :class:`~longrein.errors.TaskError` for a task that cannot be set, or not be judged."""
        require_sound(task)
        self._verifier.check(task)

    async def create(self, *, task: Task, endpoint: Endpoint, session_id: str) -> AgentSession:
        """Make the sandbox, with the task's files and the agent's, and the endpoint's port.

        Raises:
            SandboxError: the sandbox cannot be started, after three tries.
        """
        launch = self._harness.launch(task, endpoint)
        spec = SandboxSpec(
            files=task.files,
            readonly_mounts=launch.readonly_mounts,
            loopback_ports=(endpoint.port,),
            limits=self._limits,
        )
        sandbox = await self._create(spec)
        async with AsyncExitStack() as unfinished:
            unfinished.push_async_callback(close_or_log, sandbox)
            for path, data in launch.files.items():
                inside = _resolved(path, sandbox)
                inside = inside if inside.startswith("/") else f"{sandbox.home}/{inside}"
                await sandbox.write(inside, data, executable=data.startswith(b"#!"))
            unfinished.pop_all()
        return AgentSession(task=task, launch=launch, sandbox=sandbox, backend=self._backend, verifier=self._verifier)

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        for _ in range(_CREATE_TRIES - 1):
            try:
                return await self._backend.create(spec)
            except SandboxError:
                continue
        return await self._backend.create(spec)


class AgentSession:
    """One attempt. Agent first, then the verifier; the two never meet."""

    def __init__(
        self, *, task: Task, launch: Launch, sandbox: Sandbox, backend: SandboxBackend, verifier: Verifier
    ) -> None:
        self._task = task
        self._launch = launch
        self._sandbox = sandbox
        self._backend = backend
        self._verifier = verifier
        self._left: WorkTree | None = None

    async def run(self) -> AgentExit:
        """Run the agent to its end or its timeout; every process of it is dead on return.

        Raises:
            HarnessError: the agent's program is not there.
            SandboxError: the sandbox failed.
        """
        started_s = time.monotonic()
        argv = tuple(_resolved(item, self._sandbox) for item in self._launch.argv)
        env = {name: _resolved(value, self._sandbox) for name, value in self._launch.env.items()}
        result = await self._sandbox.exec(argv, env=env, stdin=self._launch.stdin, timeout_s=self._task.agent_timeout_s)
        duration_s = time.monotonic() - started_s
        if result.exit_code == _NO_SUCH_COMMAND:
            await self._require_program(argv[0], result)
        return AgentExit(
            exit_code=result.exit_code,
            timed_out=result.timed_out,
            output_tail=_tail(result),
            duration_s=duration_s,
            findings=result.findings,
        )

    async def verify(self) -> Score:
        """Judge the work directory in a second sandbox; the agent's own is closed before the hidden tests appear."""
        if self._left is None:
            self._left = await self._sandbox.collect()
            await close_or_log(self._sandbox)
        found = findings_on(self._task, self._left, self._sandbox.workdir)
        score = await self._verifier.verify(self._task, self._left, self._backend)
        return replace(score, findings=(*found, *score.findings))

    async def close(self) -> None:
        """Remove everything; what stays is said in the log. Safe to call twice."""
        await close_or_log(self._sandbox)

    async def _require_program(self, program: str, result: ExecResult) -> None:
        """127 may be the agent's own answer; it is a fault of ours only where the program is missing."""
        look = ("sh", "-c", 'command -v -- "$1"', "sh", program)
        found = await self._sandbox.exec(look, timeout_s=_LOOK_UP_TIMEOUT_S)
        if found.exit_code != 0:
            raise HarnessError(
                f"agent program {program!r} is not in the sandbox; install it under /usr or give a read-only mount "
                f"({_tail(result)[-200:]})"
            )


def _resolved(text: str, sandbox: Sandbox) -> str:
    """``$HOME`` and ``$WORKDIR`` at the beginning of a path, as the sandbox has them."""
    for name, folder in (("$HOME", sandbox.home), ("$WORKDIR", sandbox.workdir)):
        if text == name or text.startswith(f"{name}/"):
            return folder + text[len(name) :]
    return text


def _tail(result: ExecResult) -> str:
    return (result.stdout[-_TAIL_CHARACTERS:] + result.stderr[-_TAIL_CHARACTERS:]).decode(errors="replace")
