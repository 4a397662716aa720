"""The judge: hidden tests in a second, fresh sandbox, over a copy of what the agent left behind.

Convention of Harbor task directories: ``bash /tests/test.sh`` runs in the work directory; what it leaves is read by
:mod:`longrein.tasks.verdicts`. ``/tests/task.json`` tells it the task's id, prompt and metadata.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from longrein.errors import SandboxError, TaskError
from longrein.sandboxes.base import SandboxBackend, SandboxLimits, SandboxSpec, WorkTree
from longrein.sandboxes.closing import close_or_log
from longrein.sandboxes.links import without_outside_links
from longrein.tasks.sound import path_problem
from longrein.tasks.verdicts import LOGS, VERDICTS, said
from longrein.types import Finding, Score, Task

_TESTS = "/tests"
_TASK = "task.json"
_COMMAND = 'exec bash "${SANDBOX_ROOT:-}/tests/test.sh"'
_TRIES = 3
_NAMED_PATHS = 5


class Verifier(Protocol):
    """Judges what an agent left behind. Picklable: it travels to the spawned rollout worker."""

    def check(self, task: Task) -> None:
        """Say before a run what would end it in the middle. Raises :class:`~longrein.errors.TaskError`."""
        ...

    async def verify(self, task: Task, work: WorkTree, backend: SandboxBackend) -> Score:
        """Judge a work directory. Whatever goes wrong makes it unscorable (``reward=None``), never 0.

        Args:
            task: what was asked.
            work: what the agent left in its work directory.
            backend: makes a sandbox, where one is needed.
        """
        ...


class SandboxedTests(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks' own hidden tests, each in a fresh sandbox. Satisfies :class:`Verifier`."""

    limits: SandboxLimits = SandboxLimits()

    def check(self, task: Task) -> None:
        """See :func:`check_task`."""
        check_task(task)

    async def verify(self, task: Task, work: WorkTree, backend: SandboxBackend) -> Score:
        """See :func:`verify`."""
        return await verify(task, work, backend, self.limits)


def check_task(task: Task) -> None:
    """Say before a run what would end it in the middle.

    Raises:
        TaskError: the task has no ``tests/test.sh``, or a file of it would lie outside its folder.
    """
    if "test.sh" not in task.tests:
        raise TaskError(f"task {task.task_id!r} has no tests/test.sh; every task needs one to be scored")
    problem = path_problem(task.files) or path_problem(task.tests)
    if problem:
        raise TaskError(f"task {task.task_id!r}: {problem}")


async def verify(task: Task, work: WorkTree, backend: SandboxBackend, limits: SandboxLimits) -> Score:
    """Judge a work directory. Whatever goes wrong makes it unscorable (``reward=None``), never 0.

    Work of which a part was not collected, over the limits, is worth 0 and says so in a finding: judged without that
    part, tests that something is *not* there would pass; unscorable, an agent could choose not to be judged. Tests
    that filled the sandbox's disk are worth 0 for the same reason. Symlinks
    that lead outside the work directory are not there for the tests.

    Args:
        task: brings the hidden tests and their time limit.
        work: what the agent left in its work directory.
        backend: makes the sandbox, which has no network.
        limits: bounds on the tests.

    Raises:
        TaskError: see :func:`check_task`.
    """
    check_task(task)
    if work.left_out:
        return Score(reward=0.0, findings=(Finding(kind="work_left_out", detail=_left_out(work.left_out)),))
    reason = ""
    for _ in range(_TRIES):
        try:
            return await _judge(task, work, backend, limits)
        except SandboxError as error:
            reason = f"no sandbox for the verifier after {_TRIES} tries: {error}"
    return Score(reward=None, reason=reason)


async def _judge(task: Task, work: WorkTree, backend: SandboxBackend, limits: SandboxLimits) -> Score:
    sandbox = await backend.create(SandboxSpec(folders=(_TESTS, LOGS), limits=limits))
    try:
        await sandbox.restore(await asyncio.to_thread(without_outside_links, work, sandbox.workdir))
        for path, data in {_TASK: _told(task), **task.tests}.items():
            await sandbox.write(f"{_TESTS}/{path}", data, executable=data.startswith(b"#!"))
        result = await sandbox.exec(("bash", "-c", _COMMAND), timeout_s=task.verifier_timeout_s)
        if result.timed_out:
            return Score(reward=None, reason=f"the verifier ran past {task.verifier_timeout_s} s")
        full = tuple(finding for finding in result.findings if finding.kind == "disk_limit")
        if full:
            # Unscorable, an agent's code could choose not to be judged: it fills the disk while it is tested.
            return Score(reward=0.0, findings=full)
        if result.exit_code < 0:
            return Score(reward=None, reason=f"the verifier was killed by signal {-result.exit_code}; {said(result)}")
        return await VERDICTS[task.verdict](sandbox, result)
    finally:
        await close_or_log(sandbox)


def _told(task: Task) -> bytes:
    return msgspec.json.encode(
        {"task_id": task.task_id, "prompt": task.prompt, "metadata": task.metadata}, enc_hook=str
    )


def _left_out(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - _NAMED_PATHS} more" if len(paths) > _NAMED_PATHS else ""
    return (
        f"work left out: {', '.join(paths[:_NAMED_PATHS])}{more}; over the sandbox's limits on what is collected "
        "(SandboxLimits), unreadable, or named otherwise than in UTF-8"
    )
