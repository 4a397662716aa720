"""Our agents in OpenEnv's shape: a ``ResourceSessionFactory`` whose sessions own their loop and have exact tokens.

For trainers and collectors of OpenEnv's world. The gateway and the engine's client live in a thread with an event loop
of its own, since OpenEnv's calls block.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack, ExitStack
from importlib import import_module
from typing import Any, TypeVar, cast
from uuid import uuid4

from longrein.engines.base import EngineSpec
from longrein.errors import ConfigError
from longrein.gateway.session import SessionRecord
from longrein.gateway.settings import GatewaySettings
from longrein.rollout.dataset import tasks_from
from longrein.rollout.driving import AgentLoops
from longrein.rollout.group import main_path
from longrein.rollout.runtime import RendererSource, RolloutRuntime, RuntimeSettings, open_runtime
from longrein.rollout.watch import run_until_over
from longrein.sessions.base import LoopOwningSession, SessionFactory
from longrein.sessions.openenv_entries import entries_of
from longrein.sessions.openenv_trace import conversation
from longrein.sessions.openenv_types import HarnessRolloutResult, ToolResultShape, VerifyResult, given
from longrein.types import Message, Score, Task, Trace

T = TypeVar("T")


class OpenEnvAgents:
    """Makes :class:`AgentEpisode`. Picklable until the first session; :meth:`close` ends the gateway.

    Args:
        factory: ours, for instance an :class:`~longrein.sessions.agent.AgentSessionFactory`.
        engine: where completions come from.
        renderer: how conversations become tokens.
        gateway: sampling and budgets.

    Raises:
        ConfigError: OpenEnv is not installed.
    """

    def __init__(
        self,
        *,
        factory: SessionFactory,
        engine: EngineSpec,
        renderer: RendererSource,
        gateway: GatewaySettings | None = None,
    ) -> None:
        _register()
        self._settings = RuntimeSettings(
            engine=engine,
            renderer=renderer,
            gateway=gateway or GatewaySettings(),
            driving=AgentLoops(factory=factory),
        )
        self._factory = factory
        self._backstage: Backstage | None = None

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> AgentEpisode:
        """Make a session.

        Args:
            task: a :class:`~longrein.types.Task`, a row with a ``prompt``, or the prompt.
            seed: taken and not needed: what is sampled follows from the gateway's seed and the episode.
            episode_id: names the session; made up if missing.

        Raises:
            ConfigError: a task that is none.
            SandboxError: the sandbox cannot be started.
        """
        if self._backstage is None:
            self._backstage = Backstage(self._settings)
        return AgentEpisode(self._backstage, self._factory, _task(task), episode_id or uuid4().hex)

    def close(self) -> None:
        """Close the gateway and all that is open before it. Safe to call twice."""
        if self._backstage is not None:
            self._backstage.close()
            self._backstage = None


class AgentEpisode:
    """One attempt of an agent: OpenEnv's ``ResourceSession``, ``LoopOwningSession`` and ``TrainableSession``."""

    def __init__(self, backstage: Backstage, factory: SessionFactory, task: Task, session_id: str) -> None:
        self._backstage = backstage
        self._task = task
        self._session_id = session_id
        self._record: SessionRecord | None = None
        self._closed = False
        self._session = backstage.run(self._create(factory))
        backstage.open_episodes.add(self)

    def initial_messages(self) -> list[Message]:
        """What the agent is asked; it begins its own conversation with it."""
        return [{"role": "user", "content": self._task.prompt}]

    def list_tools(self) -> list[Any]:
        """None: the agent has its own."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResultShape:
        """Raises ``KeyError``: the agent has its own tools."""
        raise KeyError(f"Unknown tool: {name}; the agent runs its own")

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Run the agent to its end; returns its exit code.

        Raises:
            TimeoutError: it ran past its time; what it did until then is there.
            HarnessError: it could not be started.
            SandboxError: its sandbox died.
        """
        return self._backstage.run(self._run(timeout_s))

    def fetch_proxy_trace(self) -> list[dict[str, Any]]:
        """The agent's calls as OpenEnv's ``TraceEntry``; auxiliary calls and compactions are left out."""
        return entries_of(self.trace())

    def fetch_training_trace(self) -> Any:
        """The same as OpenEnv's ``TrainingTrace``."""
        return import_module("openenv.core.harness.training").TrainingTrace.from_entries(self.fetch_proxy_trace())

    def trace(self) -> Trace:
        """Everything that was captured, as we have it."""
        return self._backstage.run(self._read())

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        """Judge what the agent left behind; unscorable is ``env_reward=None`` with ``artifacts["reason"]``."""
        score = self._backstage.run(self._judge())
        artifacts = {"reason": score.reason} if score.reason else {}
        return given().verify_result(
            env_reward=score.reward, done=True, metrics=dict(score.metrics), artifacts=artifacts
        )

    def close(self) -> None:
        """Remove everything of the session. Safe to call twice, and after the factory was closed."""
        if self._closed:
            return
        self._closed = True
        self._backstage.open_episodes.discard(self)
        self._backstage.run(self._close())

    async def _create(self, factory: SessionFactory) -> LoopOwningSession:
        gateway = self._backstage.runtime.gateway
        endpoint = gateway.open_session(self._session_id)
        async with AsyncExitStack() as unfinished:
            unfinished.push_async_callback(gateway.close_session, self._session_id)
            session = await factory.create(task=self._task, endpoint=endpoint, session_id=self._session_id)
            unfinished.pop_all()
        return session

    async def _run(self, timeout_s: float | None) -> int:
        over = self._backstage.runtime.gateway.until_over(self._session_id)
        async with asyncio.timeout(timeout_s):
            agent = await run_until_over(self._session, over)
        if agent.timed_out:
            raise TimeoutError(f"the agent ran past its {self._task.agent_timeout_s:g} s")
        return agent.exit_code

    async def _read(self) -> Trace:
        if self._record is not None:
            return self._record.trace
        return self._backstage.runtime.gateway.trace(self._session_id)

    async def _judge(self) -> Score:
        # The agent is over: its key dies before the hidden tests appear.
        record = await self._end()
        if record.failure is not None:
            return Score(reward=None, reason=record.failure.message)
        return await self._session.verify()

    async def _close(self) -> None:
        await self._end()
        await self._session.close()

    async def _end(self) -> SessionRecord:
        if self._record is None:
            self._record = await self._backstage.runtime.gateway.close_session(self._session_id)
        return self._record


class AgentsOwnLoop:
    """A ``harness_adapter`` for OpenEnv's trainers: the agent runs its own loop, and its tokens are read afterwards."""

    def run_white_box(self, model_step: Any, session: Any, limits: Any = None) -> HarnessRolloutResult:
        """Wait for an :class:`AgentEpisode`; ``model_step`` is never asked, since the agent asks the gateway."""
        result = given().run_result()
        try:
            session.wait_for_completion()
            result.done = True
        except TimeoutError:
            result.metrics["truncated"] = True
        path = main_path(session.trace())
        result.messages = conversation(path)
        for entry in entries_of(session.trace()):
            result.prompt_ids.extend(entry["prompt_token_ids"])
            result.completion_ids.extend(entry["completion_token_ids"])
            result.logprobs.extend(entry["per_token_logps"])
        result.metrics["turns"] = len(path)
        return result

    def run_black_box(self, session: Any, limits: Any = None) -> HarnessRolloutResult:
        """The same: the loop is the agent's either way."""
        return self.run_white_box(None, session, limits)


class Backstage:
    """The runtime, open in a thread of its own until it is closed."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self.runtime: RolloutRuntime
        self.open_episodes: set[AgentEpisode] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="longrein-openenv", daemon=True)
        self._thread.start()
        self._opened = AsyncExitStack()
        try:
            self.runtime = self.run(self._opened.enter_async_context(open_runtime(settings)))
        except BaseException:
            self._end()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for what is done in that thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Close every episode that nobody has closed, then the runtime. Safe to call twice."""
        if self._loop.is_closed():
            return
        with ExitStack() as closing:
            closing.callback(self._end)
            closing.callback(lambda: self.run(self._opened.aclose()))
            for episode in self.open_episodes:
                closing.callback(episode.close)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _task(given_task: object) -> Task:
    if isinstance(given_task, (Task, Mapping)):
        return tasks_from([cast("Task | Mapping[str, Any]", given_task)])[0]
    if isinstance(given_task, (str, list)):
        return tasks_from([{"prompt": cast("Any", given_task)}])[0]
    raise ConfigError(f"task is {type(given_task).__name__}; give a Task, a row with a prompt, or the prompt")


def _register() -> None:
    """Let OpenEnv's ``isinstance`` checks know our classes."""
    try:
        harness = import_module("openenv.core.harness")
    except ImportError as error:
        raise ConfigError("OpenEnvAgents is for OpenEnv, which is not installed: pip install openenv") from error
    harness.ResourceSession.register(AgentEpisode)
    harness.ResourceSessionFactory.register(OpenEnvAgents)
    harness.HarnessAdapter.register(AgentsOwnLoop)
