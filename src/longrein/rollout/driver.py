"""Loop-owning driver: one attempt from an open endpoint to a closed, judged session. The agent runs its own loop."""

from __future__ import annotations

from longrein.gateway.gateway import Gateway
from longrein.rollout.attempt import Attempt, Ending, at_gateway, retried
from longrein.rollout.watch import run_until_over
from longrein.sessions.base import AgentExit, SessionFactory
from longrein.types import Endpoint, Rollout, Task

LAST_WORDS = 300
"""Characters of a dead agent's output that a failure repeats."""


class LoopOwningDriver:
    """Waits for the agent, closes its endpoint, then has the verifier judge what it left behind.

    An attempt that ends in an infrastructure fault is made again, at most ``max_retries`` times.
    """

    def __init__(self, gateway: Gateway, factory: SessionFactory, max_retries: int = 1) -> None:
        self._gateway = gateway
        self._factory = factory
        self._max_retries = max_retries

    async def run(self, attempt: Attempt) -> Rollout:
        """Run one attempt, retried on faults of the infrastructure."""

        async def once(session_id: str) -> Rollout:
            async def judge(endpoint: Endpoint, ending: Ending) -> None:
                await self._judge(attempt.task, endpoint, session_id, ending)

            return await at_gateway(self._gateway, attempt, session_id, judge)

        return await retried(once, attempt, self._max_retries)

    async def _judge(self, task: Task, endpoint: Endpoint, session_id: str, ending: Ending) -> None:
        session = await self._factory.create(task=task, endpoint=endpoint, session_id=session_id)
        try:
            agent = await run_until_over(session, self._gateway.until_over(session_id))
            ending.timed_out = agent.timed_out
            ending.findings = agent.findings
            ending.last_words = _last_words(agent)
            ending.metrics["exit_code"] = float(agent.exit_code)
            # The agent is dead: its key dies before the hidden tests appear.
            ending.record = await self._gateway.close_session(session_id)
            if ending.record.failure is None:
                ending.score = await session.verify()
        finally:
            await session.close()


def _last_words(agent: AgentExit) -> str:
    """Why an agent that died at its start did so: nobody else will tell."""
    how = "it ran past its time" if agent.timed_out else f"exit code {agent.exit_code}"
    said = agent.output_tail.strip()[-LAST_WORDS:]
    return f"{how}; it said: {said}" if said else f"{how}; it said nothing"
