"""Whether tasks are judged right: their oracle is worth 1, and doing nothing 0."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from longrein.rollout.together import together
from longrein.sandboxes.base import SandboxBackend, SandboxSpec
from longrein.sandboxes.closing import close_or_log
from longrein.tasks.verifier import Verifier
from longrein.types import Score, Task


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one task."""

    task_id: str
    oracle_passes: bool
    no_op_fails: bool
    problem: str = ""
    """What is wrong; empty for a right task."""


async def check_tasks(
    tasks: Sequence[Task], verifier: Verifier, backend: SandboxBackend, max_inflight: int
) -> list[Checked]:
    """Judge each task's oracle, and its files as they are, ``max_inflight`` tasks at once; in their order."""
    slots = asyncio.Semaphore(max_inflight)

    async def one(task: Task) -> Checked:
        async with slots:
            oracle = await _judged(task, task.oracle, verifier, backend)
            nothing = await _judged(task, (), verifier, backend)
            return _checked(task, oracle, nothing)

    return await together(one(task) for task in tasks)


async def _judged(task: Task, commands: Sequence[str], verifier: Verifier, backend: SandboxBackend) -> Score:
    sandbox = await backend.create(SandboxSpec(files=task.files))
    try:
        for command in commands:
            await sandbox.exec(("bash", "-c", command), timeout_s=task.agent_timeout_s)
        work = await sandbox.collect()
    finally:
        await close_or_log(sandbox)
    return await verifier.verify(task, work, backend)


def _checked(task: Task, oracle: Score, nothing: Score) -> Checked:
    problems: list[str] = []
    if not task.oracle:
        problems.append("it has no oracle (solution/solve.sh)")
    elif oracle.reward != 1.0:
        problems.append(f"the oracle is worth {_worth(oracle)}, not 1")
    if nothing.reward != 0.0:
        problems.append(f"doing nothing is worth {_worth(nothing)}, not 0")
    return Checked(
        task_id=task.task_id,
        oracle_passes=bool(task.oracle) and oracle.reward == 1.0,
        no_op_fails=nothing.reward == 0.0,
        problem="; ".join(problems),
    )


def _worth(score: Score) -> str:
    return f"nothing that can be said ({score.reason})" if score.reward is None else f"{score.reward:g}"
