"""Oracle rollouts, collected through the gateway: the same agent, the same capture, a scripted model."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

import msgspec

from longrein.engines.scripted import ScriptedEngine
from longrein.errors import TaskError
from longrein.rollout.attempt import Attempt
from longrein.rollout.runtime import RolloutRuntime
from longrein.rollout.together import together
from longrein.types import Message, Rollout, Task

LOG = logging.getLogger(__name__)


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

    Unscorable ones are a fault of the machine, not of the task: they are left out, and their number is logged.

    Raises:
        TaskError: a task without an oracle, an oracle that the verifier does not accept, or fewer than half of the
            demonstrations left.
    """
    slots = asyncio.Semaphore(max_inflight)

    async def one(number: int, task: Task) -> Rollout:
        attempt = Attempt(
            rollout_id=f"oracle-{number:05d}", group_id="oracle", task=task, seed=number, group_seed=number
        )
        async with slots:
            engine.tell(attempt.rollout_id, voice.turns(task))
            return await runtime.driver.run(attempt)

    return _accepted(await together(one(number, task) for number, task in enumerate(tasks)))


def _accepted(rollouts: Sequence[Rollout]) -> list[Rollout]:
    scored = [rollout for rollout in rollouts if rollout.score.reward is not None]
    bad = [rollout for rollout in scored if rollout.score.reward is not None and rollout.score.reward < 1.0]
    if bad:
        raise TaskError(
            f"{len(bad)} of {len(rollouts)} oracle rollouts did not get reward 1; the first is {bad[0].task_id}: "
            f"{_why(bad[0])}. Check the task's oracle with its tests, and [sft] tool and argument against the "
            "agent's tool."
        )
    if len(scored) < len(rollouts):
        first = next(rollout for rollout in rollouts if rollout.score.reward is None)
        said = f"{len(rollouts) - len(scored)} of {len(rollouts)} oracle rollouts could not be scored"
        why = f"the first is {first.task_id}: {_why(first)}"
        if 2 * len(scored) < len(rollouts):
            raise TaskError(f"{said}; {why}. Mend the cause and start again.")
        LOG.warning("%s and are left out; %s", said, why)
    return scored


def _why(rollout: Rollout) -> str:
    if rollout.failure:
        return rollout.failure.message
    if any(call.completion.finish_reason == "length" for call in rollout.trace.calls):
        return "a turn of the oracle is longer than rollout.max_tokens"
    return f"reward {rollout.score.reward} after {len(rollout.trace.calls)} calls, {rollout.status}"
