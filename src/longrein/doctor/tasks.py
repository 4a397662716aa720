"""Check: tasks can be solved, and are not solved already."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

import msgspec

from longrein.doctor.check import About
from longrein.doctor.result import Verdict, cannot_tell, failed, passed
from longrein.doctor.task_places import oracle_line, place_of, reward_line
from longrein.rollout.together import together
from longrein.sandboxes.base import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec
from longrein.tasks.verifier import Verifier
from longrein.types import Score, Task

SAMPLE = 8
AT_ONCE = 4
SHOWN = 5
_LINE = re.compile(rb"longrein-line:(\d+)")
_TRAP = "trap 'echo longrein-line:$((LINENO-1)) >&2' ERR\n"
"""Before a script, has bash name each of its lines that fails."""


class _Tried(msgspec.Struct, frozen=True, kw_only=True):
    score: Score
    command: int = 0
    """The last command of the oracle that failed, or the last one."""
    line: int = 1
    """Of that command, the line that failed."""
    said: str = ""


class Tasks:
    """Has the oracle solve a sample of tasks, and nobody solve them.

    Args:
        tasks: the run's tasks, those for training and those held out. Raises :class:`~longrein.errors.TaskError`.
        folder: of task directories; empty for the procedural suite.
        backend: makes the sandbox backend.
        limits: of the run's sandboxes.
        verifier: who judges.
    """

    about = About(name="tasks", certifies="on a sample of tasks the oracle gets 1, and doing nothing gets 0")

    def __init__(
        self,
        tasks: Callable[[], Sequence[Task]],
        folder: str,
        backend: Callable[[], SandboxBackend],
        limits: SandboxLimits,
        verifier: Verifier,
    ) -> None:
        self._tasks = tasks
        self._folder = folder
        self._backend = backend
        self._limits = limits
        self._verifier = verifier

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        tasks = self._tasks()
        sample = [tasks[at * len(tasks) // SAMPLE] for at in range(SAMPLE)] if len(tasks) > SAMPLE else list(tasks)
        backend, slots = self._backend(), asyncio.Semaphore(AT_ONCE)

        async def one(task: Task) -> list[str]:
            async with slots:
                return [*await self._without_work(task, backend), *await self._with_oracle(task, backend)]

        problems = [problem for found in await together(one(task) for task in sample) for problem in found]
        if problems:
            more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
            return failed("; ".join(problems[:SHOWN]) + more, "mend these tasks, or leave them out")
        unsolved = [task.task_id for task in sample if not task.oracle]
        if unsolved:
            return cannot_tell(
                f"{len(unsolved)} of {len(sample)} tasks have no oracle, {unsolved[0]} say; doing nothing gets 0",
                "add solution/solve.sh",
            )
        return passed(f"{len(sample)} of {len(tasks)} tasks: oracle 1, nothing 0")

    async def _without_work(self, task: Task, backend: SandboxBackend) -> list[str]:
        tried = await self._tried(task, (), backend)
        place = place_of(task, self._folder, "tests/test.sh", reward_line(task))
        if tried.score.reward is None:
            return [f"{place}: unscorable: {tried.score.reason}"]
        return [] if tried.score.reward == 0 else [f"{place}: doing nothing gets {tried.score.reward:g}"]

    async def _with_oracle(self, task: Task, backend: SandboxBackend) -> list[str]:
        if not task.oracle:
            return []
        tried = await self._tried(task, task.oracle, backend)
        line = oracle_line(task, tried.command, tried.line)
        place = place_of(task, self._folder, "solution/solve.sh", line)
        if tried.score.reward is None:
            return [f"{place}: unscorable after the oracle: {tried.score.reason}"]
        said = f" ({tried.said})" if tried.said else ""
        return [] if tried.score.reward == 1 else [f"{place}: the oracle gets {tried.score.reward:g}{said}"]

    async def _tried(self, task: Task, commands: Sequence[str], backend: SandboxBackend) -> _Tried:
        """One command after the other in the work directory, then the verifier."""
        sandbox = await backend.create(SandboxSpec(files=task.files, limits=self._limits))
        try:
            worst = _Tried(score=Score(reward=None), command=max(0, len(commands) - 1))
            for number, command in enumerate(commands):
                worst = await _command(sandbox, task, number, command) or worst
            work = await sandbox.collect()
        finally:
            await sandbox.close()
        return msgspec.structs.replace(worst, score=await self._verifier.verify(task, work, backend))


async def _command(sandbox: Sandbox, task: Task, number: int, command: str) -> _Tried | None:
    """Run one command; what is told of it if it failed."""
    script = f"{sandbox.home}/.longrein-oracle.sh"
    await sandbox.write(script, f"{_TRAP}{command}\n".encode())
    result = await sandbox.exec(("bash", script), timeout_s=task.agent_timeout_s)
    lines = _LINE.findall(result.stderr)
    if not lines and result.exit_code == 0:
        return None
    said = _LINE.sub(b"", result.stderr).decode(errors="replace").strip().splitlines()
    return _Tried(
        score=Score(reward=None),
        command=number,
        line=int(lines[-1]) if lines else 1,
        said=said[-1][:200] if said else f"exit code {result.exit_code}",
    )
