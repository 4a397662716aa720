"""Driver for sessions whose agent asked somebody else's endpoint: we wait, read the recording, and have it judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from longrein.errors import ConfigError, InfrastructureError, TraceError, boundary
from longrein.gateway.session import SessionRecord
from longrein.rollout.attempt import Attempt, Ending, concluded, retried
from longrein.rollout.group import main_path
from longrein.sessions.openenv import OpenEnvEpisode, OpenEnvSession, OpenEnvSessions
from longrein.sessions.openenv_trace import Recorded, RecordedOver, conversation, trace_of_proxy, trace_of_training
from longrein.sessions.session_thread import CallTimeoutError, SessionThreads
from longrein.tasks.verdicts import finite
from longrein.types import Rollout


class RecordedElsewhereDriver:
    """Drives OpenEnv's ``TrainableSession`` and ``LoopOwningSession``.

    Which version of the weights sampled a token is not recorded there: every call counts from the version at the
    session's start, which is a lower bound, to the one at its end.
    """

    def __init__(
        self,
        *,
        sessions: OpenEnvSessions,
        vocab_size: int,
        policy_version: Callable[[], int],
        max_threads: int,
        max_retries: int = 1,
    ) -> None:
        self._sessions = sessions
        self._vocab_size = vocab_size
        self._policy_version = policy_version
        self._threads = SessionThreads(max_threads)
        self._max_retries = max_retries

    async def run(self, attempt: Attempt) -> Rollout:
        """Run one attempt, retried on faults of the infrastructure."""

        async def once(session_id: str) -> Rollout:
            started_s = time.monotonic()
            ending = Ending()
            with boundary() as caught:
                await self._judge(attempt, session_id, ending)
            return concluded(attempt, session_id, ending, caught.failure, time.monotonic() - started_s)

        return await retried(once, attempt, self._max_retries)

    async def _judge(self, attempt: Attempt, session_id: str, ending: Ending) -> None:
        episode = OpenEnvEpisode(task=attempt.task, seed=attempt.group_seed, episode_id=session_id)
        started_with = self._policy_version()
        async with self._threads.thread(f"longrein-session {session_id}") as thread:
            session = await OpenEnvSession.create(self._sessions, episode, thread)
            try:
                await _wait_for_agent(session, attempt.task.agent_timeout_s, ending)
                over = RecordedOver(
                    session_id=session_id,
                    vocab_size=self._vocab_size,
                    min_policy_version=started_with,
                    max_policy_version=max(started_with, self._policy_version()),
                )
                recorded = await _recorded(session, over)
                ending.metrics["unanswered_calls"] = float(recorded.unanswered)
                ending.record = SessionRecord(trace=recorded.trace, truncated=False, failure=None, counters={})
                if recorded.trace.calls:
                    ending.score = await session.verify(conversation(main_path(recorded.trace)))
                else:
                    ending.last_words = "nothing was recorded"
            finally:
                await session.close()


async def _wait_for_agent(session: OpenEnvSession, timeout_s: float, ending: Ending) -> None:
    """Wait for the agent; one that runs out of time is judged by what it did until then."""
    if not hasattr(session.session, "wait_for_completion"):
        raise ConfigError(
            f"{type(session.session).__name__} has no loop of its own (no wait_for_completion()); give "
            "HarnessRolloutWorker a harness_adapter, for instance longrein.rollout.tool_loop.ToolLoop()"
        )
    try:
        code: Any = await session.call("wait_for_completion", timeout_s, timeout_s=timeout_s + session.call_timeout_s)
    except CallTimeoutError:
        raise
    except InfrastructureError as error:
        if not isinstance(error.__cause__, TimeoutError):
            raise
        ending.timed_out = True
        return
    number = finite(code)
    if number is not None:
        ending.metrics["exit_code"] = number


async def _recorded(session: OpenEnvSession, over: RecordedOver) -> Recorded:
    """What the session has recorded.

    Raises:
        InfrastructureError: it is malformed: data of no use, not a bug.
    """
    try:
        if hasattr(session.session, "fetch_training_trace"):
            return trace_of_training(await session.call("fetch_training_trace"), over)
        if hasattr(session.session, "fetch_proxy_trace"):
            return trace_of_proxy(await session.call("fetch_proxy_trace"), over)
    except TraceError as error:
        raise InfrastructureError(str(error)) from error
    raise ConfigError(
        f"{type(session.session).__name__} has neither fetch_training_trace() nor fetch_proxy_trace(); without the "
        "tokens that were sampled, nothing can be trained"
    )
