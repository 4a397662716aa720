"""White-box driver: we sample every turn and call the session's tools, by an adapter of OpenEnv's shape."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from longrein.errors import InfrastructureError
from longrein.gateway.gateway import Gateway
from longrein.rollout.attempt import Attempt, Ending, at_gateway, retried
from longrein.rollout.model_step import GatewayModelStep
from longrein.rollout.tool_loop import final_state_of
from longrein.sessions.heard import HeardSession
from longrein.sessions.leash import Leash
from longrein.sessions.openenv import OpenEnvEpisode, OpenEnvSession, OpenEnvSessions, foreign
from longrein.sessions.openenv_types import HarnessAdapter, RunResult, given
from longrein.sessions.session_thread import SessionThread, SessionThreads
from longrein.sessions.tool_answers import with_every_call_answered
from longrein.types import Endpoint, Message, Rollout, Score


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter is told of the run."""

    max_turns: int
    max_tokens: int
    """Of one turn."""
    temperature: float


class WhiteBoxDriver:
    """Runs the adapter's loop in a thread of its own; the session's calls run in another, tokens are the gateway's.

    An attempt that ends in an infrastructure fault is made again, at most ``max_retries`` times. The loop has the
    task's ``agent_timeout_s``; each call of the session has ``sessions.call_timeout_s``.
    """

    def __init__(
        self,
        *,
        gateway: Gateway,
        sessions: OpenEnvSessions,
        adapter: HarnessAdapter,
        limits: TurnLimits,
        max_threads: int,
        max_retries: int = 1,
    ) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._adapter = adapter
        self._limits = limits
        self._session_threads = SessionThreads(max_threads)
        self._loop_threads = SessionThreads(max_threads)
        self._max_retries = max_retries

    async def run(self, attempt: Attempt) -> Rollout:
        """Run one attempt, retried on faults of the infrastructure."""

        async def once(session_id: str) -> Rollout:
            async def judge(endpoint: Endpoint, ending: Ending) -> None:
                await self._judge(attempt, session_id, ending)

            return await at_gateway(self._gateway, attempt, session_id, judge)

        return await retried(once, attempt, self._max_retries)

    async def _judge(self, attempt: Attempt, session_id: str, ending: Ending) -> None:
        episode = OpenEnvEpisode(task=attempt.task, seed=attempt.group_seed, episode_id=session_id)
        async with (
            self._session_threads.thread(f"longrein-session {session_id}") as thread,
            self._loop_threads.thread(f"longrein-loop {session_id}") as loop_thread,
        ):
            session = await OpenEnvSession.create(self._sessions, episode, thread)
            try:
                run = _Run(self._gateway, session, attempt, session_id)
                finished = await self._looped(run, loop_thread, session_id, ending)
                if finished is not None:
                    ending.score = await session.verify(finished.transcript, finished.final_state)
            finally:
                await session.close()

    async def _looped(self, run: _Run, thread: SessionThread, session_id: str, ending: Ending) -> _Finished | None:
        """Run the loop and close its endpoint; ``None`` where there is nothing to judge."""
        try:
            finished = await run.to_the_end(self._adapter, self._limits, thread, ending)
        except InfrastructureError:
            ending.record = await self._gateway.close_session(session_id)
            if ending.record.failure is None:
                raise
            # The loop failed because the engine had, whose own words say more.
            return None
        ending.record = await self._gateway.close_session(session_id)
        if ending.record.trace.calls and ending.record.failure is None:
            return finished
        ending.score = Score(reward=None, reason="no call to the model was answered")
        return None


class _Finished(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter's loop came to, as ``verify()`` takes it."""

    transcript: list[Message]
    final_state: dict[str, Any]


class _Run:
    """One episode's loop."""

    def __init__(self, gateway: Gateway, session: OpenEnvSession, attempt: Attempt, session_id: str) -> None:
        self._leash = Leash()
        self._time_s = attempt.task.agent_timeout_s
        self._call_timeout_s = session.call_timeout_s
        self._session = HeardSession(session, self._leash)
        ends_at_s = asyncio.get_running_loop().time() + self._time_s
        self.step = GatewayModelStep(gateway=gateway, session_id=session_id, ends_at_s=ends_at_s, leash=self._leash)

    async def to_the_end(
        self, adapter: HarnessAdapter, turns: TurnLimits, thread: SessionThread, ending: Ending
    ) -> _Finished:
        """Run the adapter's loop.

        Raises:
            InfrastructureError: the loop, the session or the gateway's refusal ended it.
        """
        sampling = {"temperature": turns.temperature, "max_tokens": turns.max_tokens}
        limits = given().run_limits(max_turns=turns.max_turns, sampling=sampling)
        what = f"{type(adapter).__name__}.run_white_box()"

        def work() -> RunResult:
            try:
                return adapter.run_white_box(self.step, self._session, limits)
            except SystemExit as error:
                raise InfrastructureError(f"{what} called exit({error.code!r})") from error

        try:
            # The model is not asked after its time, and a tool has its own: what takes longer is the adapter itself.
            result = await thread.call(what, work, self._time_s + 2 * self._call_timeout_s)
            _require_result(what, result)
        except InfrastructureError:
            raise
        except Exception as error:
            raise self._cause(what, error) from error
        finally:
            self._leash.end()
            ending.timed_out = self.step.timed_out
        with foreign(f"reading what {what} returned"):
            return self._finished(result, ending)

    def _finished(self, result: RunResult, ending: Ending) -> _Finished:
        truncated = self.step.cut_short or not result.done or bool(result.metrics.get("truncated"))
        ending.truncated = truncated and not self.step.timed_out
        ending.metrics["tool_calls"] = float(len(result.tool_trace))
        ending.metrics["tool_errors"] = float(sum(entry.result.error is not None for entry in result.tool_trace))
        return _Finished(
            transcript=with_every_call_answered(self.step.without_unsampled(result.messages)),
            final_state=final_state_of(result),
        )

    def _cause(self, what: str, error: Exception) -> Exception:
        """The adapter is somebody else's, so what it raises is a fault of the world; but not what comes from us."""
        if self.step.bug is not None:
            return self.step.bug
        why = self.step.refusal or error
        return InfrastructureError(f"{what} failed: {type(why).__name__}: {why}")


def _require_result(what: str, result: Any) -> None:
    """Raise ``InfrastructureError`` for what is no ``HarnessRolloutResult``."""
    missing = [name for name in ("messages", "done", "metrics", "events", "tool_trace") if not hasattr(result, name)]
    if missing:
        raise InfrastructureError(f"{what} returned a {type(result).__name__} without {', '.join(missing)}")
