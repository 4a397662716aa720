"""Oracle rollouts, collected through the gateway: the same agent, the same capture, a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import msgspec

from longrein.engines.scripted import ScriptedEngine
from longrein.errors import TaskError
from longrein.rollout.driver import Attempt
from longrein.rollout.runtime import RolloutRuntime
from longrein.types import Message, Rollout, Task


class OracleVoice(msgspec.Struct, frozen=True, kw_only=True):
    """How the oracle's shell commands become turns of the agent's conversation."""

    tool: str = "bash"
    argument: str = "command"
    closing: str = "Done."

    def turns(self, task: Task) -> tuple[Message, ...]:
        """One tool call a command, then the closing words.

        Raises:
            TaskError: the task has no oracle.
        """
        if not task.oracle:
            raise TaskError(
                f"task {task.task_id} has no oracle (solution/solve.sh); sft needs one for every task it uses"
            )
        calls = [self._call(number, command) for number, command in enumerate(task.oracle)]
        return (*calls, {"role": "assistant", "content": self.closing})

    def _call(self, number: int, command: str) -> Message:
        function = {"name": self.tool, "arguments": json.dumps({self.argument: command}, ensure_ascii=False)}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": f"oracle_{number}", "type": "function", "function": function}],
        }


async def demonstrate(
    runtime: RolloutRuntime, engine: ScriptedEngine, tasks: Sequence[Task], voice: OracleVoice, max_inflight: int
) -> list[Rollout]:
    """Run the oracle on every task; returns the rollouts that the verifier gave full marks.

    Raises:
        TaskError: a task without an oracle, or an oracle that the verifier does not accept.
    """
    slots = asyncio.Semaphore(max_inflight)

    async def one(number: int, task: Task) -> Rollout:
        attempt = Attempt(rollout_id=f"oracle-{number:05d}", group_id="oracle", task=task, seed=number)
        async with slots:
            engine.tell(attempt.rollout_id, voice.turns(task))
            return await runtime.driver.run(attempt)

    rollouts = await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks)))
    bad = [rollout for rollout in rollouts if rollout.score.reward is None or rollout.score.reward < 1.0]
    if bad:
        first = bad[0]
        why = first.failure.message if first.failure else f"reward {first.score.reward}"
        raise TaskError(
            f"{len(bad)} of {len(rollouts)} oracle rollouts did not get reward 1; the first is {first.task_id}: {why}. "
            "Check the task's oracle with its tests, and [sft] tool and argument against the agent's tool."
        )
    return rollouts
