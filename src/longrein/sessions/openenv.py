"""OpenEnv's sessions as they are: recognised by shape, run in a thread, their faults made ours.

Source: openenv 0.10, ``openenv.core.harness.rollout`` (``ResourceSessionFactory``, ``ResourceSession``,
``LoopOwningSession``, ``TrainableSession``). The package itself is never imported here.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from longrein.errors import ConfigError, InfrastructureError
from longrein.sessions.openenv_types import ResourceSession, ResourceSessionFactory, VerifyResultShape
from longrein.sessions.session_thread import SessionThread
from longrein.tasks.verdicts import finite, finite_of
from longrein.types import Message, Score, Task

LOG = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 10.0
TaskOf = Callable[[Task], Any]
"""What of a task OpenEnv's ``create(task, ...)`` gets."""


def row_of(task: Task) -> dict[str, Any]:
    """The whole row of the dataset that the task was made of: ``task_id``, ``prompt`` and every other column."""
    taken = {"files": task.files, "tests": task.tests}
    return {
        **task.metadata,
        **{name: value for name, value in taken.items() if value},
        "task_id": task.task_id,
        "prompt": task.prompt,
    }


def prompt_of(task: Task) -> str:
    """The prompt alone, for factories that were written for trainers that pass nothing else (TRL)."""
    return task.prompt


class OpenEnvSessions(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenEnv factory, and how it is used. As picklable as the factory.

    ``HarnessRolloutWorker`` makes one of any OpenEnv factory that it is given; give your own to choose otherwise.
    """

    factory: ResourceSessionFactory
    task_of: TaskOf = row_of
    call_timeout_s: float = 120.0
    """For one call of a session to return; then the rollout is unscorable. An agent's own loop has the task's
    ``agent_timeout_s`` for itself."""


class OpenEnvEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is made for."""

    task: Task
    seed: int
    """The same for all rollouts of a group, since environments choose the task by it."""
    episode_id: str


class OpenEnvSession:
    """One session and the thread in which all of its calls run."""

    def __init__(self, session: ResourceSession, thread: SessionThread, call_timeout_s: float) -> None:
        self.session = session
        self.thread = thread
        self.call_timeout_s = call_timeout_s
        self._closed = False

    @classmethod
    async def create(cls, sessions: OpenEnvSessions, episode: OpenEnvEpisode, thread: SessionThread) -> OpenEnvSession:
        """Have the factory make a session.

        Raises:
            InfrastructureError: it raised, or did not return in time. A session that comes too late is closed.
        """
        factory = sessions.factory

        def make() -> ResourceSession:
            with foreign(f"{type(factory).__name__}.create()"):
                return factory.create(sessions.task_of(episode.task), seed=episode.seed, episode_id=episode.episode_id)

        session = await thread.call("the session's create()", make, sessions.call_timeout_s, late=_close_late)
        return cls(session, thread, sessions.call_timeout_s)

    async def call(self, name: str, *arguments: Any, timeout_s: float | None = None) -> Any:
        """Call a method of the session.

        Raises:
            InfrastructureError: it raised, or did not return in time.
        """
        what = f"{type(self.session).__name__}.{name}()"

        def work() -> Any:
            with foreign(what):
                return getattr(self.session, name)(*arguments)

        return await self.thread.call(what, work, timeout_s or self.call_timeout_s)

    async def verify(self, transcript: list[Message], *final_state: Any) -> Score:
        """The session's own verdict; ``None`` stays ``None``, and a verifier that fails is unscorable."""
        try:
            verdict: VerifyResultShape = await self.call("verify", transcript, *final_state)
            with foreign(f"what {type(self.session).__name__}.verify() returned"):
                return score_of(verdict)
        except InfrastructureError as error:
            return Score(reward=None, reason=str(error))

    async def close(self) -> None:
        """Close the session, from another thread where its own hangs: that may be what ends the call. Never raises."""
        if self._closed:
            return
        self._closed = True
        if not self.thread.busy:
            await _close_in(self.thread, self.session)
            return
        helper = SessionThread("longrein-session-close")
        try:
            await _close_in(helper, self.session)
        finally:
            helper.end(_nothing)


def is_openenv_factory(factory: object) -> bool:
    """Whether ``create`` takes what OpenEnv's takes (a task, ``seed``, ``episode_id``) and not our endpoint.

    Raises:
        ConfigError: it takes neither.
    """
    create = getattr(factory, "create", None)
    if create is None:
        raise ConfigError(f"harness_session_factory: {type(factory).__name__} has no method create()")
    parameters = inspect.signature(create).parameters
    if "endpoint" in parameters or inspect.iscoroutinefunction(create):
        return False
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if takes_any or {"seed", "episode_id"} <= parameters.keys():
        return True
    raise ConfigError(
        f"harness_session_factory: create({', '.join(parameters)}) of {type(factory).__name__} has neither the "
        "arguments of OpenEnv's factories (task, seed, episode_id) nor those of ours (task, endpoint, session_id)"
    )


def score_of(verdict: VerifyResultShape) -> Score:
    """OpenEnv's ``VerifyResult`` as a score: finite numbers of its metrics kept, no reward is unscorable."""
    reported: object = getattr(verdict, "metrics", None)
    numbers = finite_of(cast("Mapping[Any, object]", reported)) if isinstance(reported, Mapping) else {}
    reward: object = getattr(verdict, "env_reward", None)
    if reward is None:
        return Score(reward=None, metrics=numbers, reason="the session's verify() gave no env_reward")
    number = finite(reward)
    if number is None:
        return Score(reward=None, metrics=numbers, reason=f"the session's verify() gave env_reward={reward!r:.80}")
    return Score(reward=number, metrics=numbers)


@contextmanager
def foreign(what: str) -> Generator[None, None, None]:
    """Whatever somebody else's session raises is a fault of the world, and becomes one that names it.

    ``SystemExit`` too: a tool that reads its arguments by ``argparse`` raises it, and it would end the worker.
    """
    try:
        yield
    except InfrastructureError:
        raise
    except (Exception, SystemExit) as error:
        raise InfrastructureError(f"{what} failed: {type(error).__name__}: {error}") from error


async def _close_in(thread: SessionThread, session: ResourceSession) -> None:
    try:
        await thread.call(f"{type(session).__name__}.close()", lambda: _close(session), CLOSE_TIMEOUT_S)
    except InfrastructureError as error:
        LOG.warning("%s", error)


def _close_late(session: ResourceSession) -> None:
    """Nobody waits for it: whatever goes wrong is said in the log, and the thread goes on."""
    try:
        _close(session)
    except InfrastructureError as error:
        LOG.warning("%s", error)


def _close(session: ResourceSession) -> None:
    with foreign(f"{type(session).__name__}.close()"):
        session.close()


def _nothing() -> None:
    """Nobody waits for that thread's end."""
