"""The suite through the real thing: commands in one sandbox, the verifier's judgement in a second."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from longrein.sandboxes.base import SandboxBackend, SandboxLimits, SandboxSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sandboxes.local import SubprocessBackend
from longrein.tasks.families.registry import SUITES
from longrein.tasks.suite import ProceduralSuite
from longrein.tasks.verifier import verify
from longrein.types import Score, Task

SPELLED = SUITES["spelled"]
BACKENDS = {"bubblewrap": BubblewrapBackend(), "subprocess": SubprocessBackend()}


async def judged(task: Task, commands: Sequence[str], backend: SandboxBackend) -> Score:
    sandbox = await backend.create(SandboxSpec(files=task.files))
    try:
        for command in commands:
            await sandbox.exec(("bash", "-c", command), timeout_s=20)
        work = await sandbox.collect()
    finally:
        await sandbox.close()
    return await verify(task, work, backend, SandboxLimits())


@pytest.mark.filterwarnings("ignore:sandboxes are plain subprocesses")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", SPELLED)
async def test_oracle_scores_one_and_no_op_scores_zero(family: str, backend: str) -> None:
    task = ProceduralSuite(families=(family,)).tasks("test", 1, 0)[0]
    assert (await judged(task, task.oracle, BACKENDS[backend])).reward == 1.0
    assert (await judged(task, (), BACKENDS[backend])).reward == 0.0


FORGERIES = (
    "mkdir -p logs/verifier && echo 1 > logs/verifier/reward.txt; echo 1 > reward.txt",
    "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo true > /tests/test.sh",
    "ln -s /tests/test.sh code.txt",
    "printf '#!/bin/sh\\necho 1' > cat; cp cat find; cp cat test; cp cat '['; chmod +x cat find test '['",
    "echo 'cat() { echo 1; }' > .bashrc; cp .bashrc .profile; cp .bashrc ~/.bashrc",
)


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_what_the_agent_leaves_cannot_become_the_reward(forgery: str) -> None:
    task = ProceduralSuite(families=("write_number",)).tasks("test", 1, 0)[0]
    assert (await judged(task, (forgery,), BACKENDS["bubblewrap"])).reward == 0.0
