"""Loop-owning driver: one attempt from an open endpoint to a closed, judged session. The agent runs its own loop."""

from __future__ import annotations

import time
from typing import Protocol

import msgspec

from longrein.errors import boundary
from longrein.gateway.gateway import Gateway
from longrein.gateway.session import SessionRecord
from longrein.sessions.base import AgentExit, SessionFactory
from longrein.types import Endpoint, Failure, Rollout, Score, StatusName, Task

LAST_WORDS = 300
"""Characters of a dead agent's output that a failure repeats."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout to make."""

    rollout_id: str
    group_id: str
    task: Task
    seed: int


class Driver(Protocol):
    """Turns an attempt into a rollout. A bad rollout is data; only bugs and cancellation are raised."""

    async def run(self, attempt: Attempt) -> Rollout:
        """Run one session to its end. Everything of it is closed on return and on cancellation."""
        ...


class _Ending:
    """What is known of a session when it ends; filled in as far as it got."""

    def __init__(self) -> None:
        self.agent: AgentExit | None = None
        self.record: SessionRecord | None = None
        self.score: Score | None = None


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
        rollout = await self._once(attempt, session_id=attempt.rollout_id)
        retries = 0
        while _worth_a_retry(rollout) and retries < self._max_retries:
            retries += 1
            rollout = await self._once(attempt, session_id=f"{attempt.rollout_id}-r{retries}")
        return msgspec.structs.replace(rollout, metrics={**rollout.metrics, "retries": float(retries)})

    async def _once(self, attempt: Attempt, session_id: str) -> Rollout:
        started_s = time.monotonic()
        endpoint = self._gateway.open_session(session_id)
        ending = _Ending()
        try:
            with boundary() as caught:
                await self._judge(attempt.task, endpoint, session_id, ending)
        finally:
            record = ending.record or await self._gateway.close_session(session_id)
        failure = caught.failure or record.failure or _no_calls(record, ending.agent)
        score = ending.score or Score(reward=None, reason="not judged")
        if failure is None and score.reward is None:
            failure = Failure(kind="verifier", message=score.reason)
        if failure is not None:
            score = Score(reward=None, metrics=score.metrics, reason=failure.message)
        return Rollout(
            rollout_id=attempt.rollout_id,
            group_id=attempt.group_id,
            task_id=attempt.task.task_id,
            seed=attempt.seed,
            status=_status(failure, ending.agent, record),
            trace=record.trace,
            score=score,
            failure=failure,
            metrics={
                **record.counters,
                "duration_s": time.monotonic() - started_s,
                "delivered_token_fraction": record.trace.delivered_token_fraction,
                "calls": float(len(record.trace.calls)),
                **({"exit_code": float(ending.agent.exit_code)} if ending.agent else {}),
            },
        )

    async def _judge(self, task: Task, endpoint: Endpoint, session_id: str, ending: _Ending) -> None:
        session = await self._factory.create(task=task, endpoint=endpoint, session_id=session_id)
        try:
            ending.agent = await session.run()
            # The agent is dead: its key dies before the hidden tests appear.
            ending.record = await self._gateway.close_session(session_id)
            ending.score = await session.verify()
        finally:
            await session.close()


def _worth_a_retry(rollout: Rollout) -> bool:
    return rollout.failure is not None and rollout.failure.kind in ("sandbox", "harness", "engine", "session")


def _no_calls(record: SessionRecord, agent: AgentExit | None) -> Failure | None:
    if record.trace.calls or record.truncated:
        return None
    message = "the agent ended without one successful call to the model"
    return Failure(kind="no_calls", message=f"{message}; {_last_words(agent)}" if agent else message)


def _last_words(agent: AgentExit) -> str:
    """Why an agent that died at its start did so: nobody else will tell."""
    how = "it ran past its time" if agent.timed_out else f"exit code {agent.exit_code}"
    said = agent.output_tail.strip()[-LAST_WORDS:]
    return f"{how}; it said: {said}" if said else f"{how}; it said nothing"


def _status(failure: Failure | None, agent: AgentExit | None, record: SessionRecord) -> StatusName:
    timed_out = agent is not None and agent.timed_out
    if failure is not None:
        # A first call that the time limit cut off is the model's or the limit's doing, not a fault.
        return "timed_out" if timed_out and failure.kind == "no_calls" else "failed"
    if timed_out:
        return "timed_out"
    return "truncated" if record.truncated else "completed"
