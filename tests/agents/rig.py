"""One harness's real binary in the sandbox, run by the real driver, against a gateway with a scripted engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from longrein.engines.base import EngineRequest
from longrein.engines.scripted import Script, ScriptedEngine
from longrein.gateway import Gateway, GatewaySettings
from longrein.gateway.session import SessionRecord
from longrein.harnesses.base import Harness
from longrein.rollout.driver import Attempt, LoopOwningDriver
from longrein.sandboxes.base import ExecResult, SandboxLimits
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sessions.agent import AgentSession, AgentSessionFactory
from longrein.sessions.base import AgentExit, LoopOwningSession
from longrein.types import Call, Completion, Endpoint, Rollout, Score, Task, Trace
from tests.agents.fault_proxy import FaultProxy, Planned, Post
from tests.agents.script import ByPrompt, Turn, renderer

CONTEXT = 250_000  # bytes are tokens here, and agents' first prompts are long
PROMPT = 'Write "long reins" to the file notes/answer.txt.'
TASK = Task(
    task_id="write",
    prompt=PROMPT,
    tests={
        "test.sh": b'#!/bin/sh\nif [ "$(cat notes/answer.txt)" = "long reins" ] && [ "$(ls)" = notes ]; then echo 1; '
        b"else echo 0; fi > /logs/verifier/reward.txt\n"
    },
    agent_timeout_s=300.0,
)
SILENCE_S = 3.0
"""An agent that hears nothing has so long, however long it took to begin."""


def within(seconds: float) -> Task:
    """The same task with another time limit for the agent."""
    return msgspec.structs.replace(TASK, agent_timeout_s=seconds)


AWKWARD = msgspec.structs.replace(
    TASK, prompt="--help \"quoted\" 'too'\nand a line with $HOME, {braces}, `ticks`, \\ and ünïcode 🐎"
)
"""A prompt that shells, option parsers and templates would each spoil in a way of their own."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What one run left behind."""

    rollout: Rollout
    agent: AgentExit | None
    """``None`` when it never started."""
    record: SessionRecord
    requests: tuple[EngineRequest, ...]
    completions: dict[str, Completion]
    posts: tuple[Post, ...]
    """What the agent sent, faults included."""
    wall_s: float

    @property
    def trace(self) -> Trace:
        return self.rollout.trace

    @property
    def score(self) -> Score:
        return self.rollout.score

    @property
    def output(self) -> str:
        """The end of what the agent printed."""
        return self.agent.output_tail if self.agent else ""

    def agent_calls(self) -> list[Call]:
        return [call for call in self.trace.calls if call.role == "agent"]

    def why(self) -> str:
        """For assertion messages."""
        branches = [
            (one.call_id, one.parent_id, one.branch_reason, one.role, one.role_evidence) for one in self.trace.calls
        ]
        posts = [(one.path, type(one.fault).__name__) for one in self.posts]
        rollout = f"{self.rollout.status} {self.rollout.failure} {self.score} wall {self.wall_s:.1f} s"
        return f"{rollout}, {branches}, {self.record.counters}, posts {posts}\n{self.output}"


async def run_agent(
    harness: Harness,
    script: Script | Sequence[Turn],
    folder: Path,
    *,
    task: Task = TASK,
    faults: Sequence[Planned] = (),
    context_length: int = CONTEXT,
    limits: SandboxLimits | None = None,
    **settings: Any,
) -> Ran:
    """Run the harness once on the task; ``settings`` are the gateway's. ``folder`` must be empty again at the end."""
    harness.check()
    chat = renderer()
    engine = ScriptedEngine(
        ByPrompt([], script) if isinstance(script, Sequence) else script,
        vocab_size=chat.vocab_size,
        context_length=context_length,
    )
    options = {"context_length": context_length, "max_tokens": 4096, "retry_delay_s": 0.01, **settings}
    gateway = Gateway(engine, chat, GatewaySettings(**options))
    backend = BubblewrapBackend(root=str(folder / "sandboxes"))
    await gateway.start()
    try:
        async with FaultProxy(gateway.port, faults).listening() as proxy:
            sessions = AgentSessionFactory(harness=harness, backend=backend, limits=limits)
            factory = _Watched(sessions, proxy)
            started_s = time.monotonic()
            attempt = Attempt(rollout_id="s", group_id="g", task=task, seed=0)
            rollout = await LoopOwningDriver(gateway, factory, max_retries=0).run(attempt)
            wall_s = time.monotonic() - started_s
        record = await gateway.close_session("s")
    finally:
        await gateway.close()
    assert list((folder / "sandboxes").iterdir()) == []
    return Ran(
        rollout=rollout,
        agent=factory.agent,
        record=record,
        requests=tuple(engine.requests),
        completions=engine.completions,
        posts=tuple(proxy.posts),
        wall_s=wall_s,
    )


def assert_done(ran: Ran) -> None:
    """The agent did the task, and every token of its calls reached it."""
    assert ran.rollout.status == "completed", ran.why()
    assert ran.score == Score(reward=1.0), ran.why()
    assert all(one.delivered for one in ran.agent_calls()), ran.why()
    assert_exact(ran)


def assert_one_row(ran: Ran) -> None:
    """The agent's conversation is one path from its root to its leaf."""
    paths = [path for path in ran.trace.paths() if path[0].role == "agent"]
    assert len(paths) == 1, ran.why()


def roles(ran: Ran) -> list[str]:
    """One a call; each with evidence."""
    assert all(one.role_evidence for one in ran.trace.calls), ran.why()
    return [one.role for one in ran.trace.calls]


def assert_exact(ran: Ran) -> None:
    """Invariant 1: prompts are what the engine saw, completions are what it said, children extend their parents."""
    seen = {request.request_id: request for request in ran.requests}
    for one, request_id in zip(ran.trace.calls, ran.completions, strict=True):
        prompt = ran.trace.prompt_ids(one)
        np.testing.assert_array_equal(prompt, seen[request_id].prompt_ids)
        np.testing.assert_array_equal(one.completion.token_ids, ran.completions[request_id].token_ids)
        np.testing.assert_array_equal(one.completion.logprobs, ran.completions[request_id].logprobs)
        if one.parent_id is not None:
            parent = ran.trace.calls[one.parent_id]
            stream = np.concatenate([ran.trace.prompt_ids(parent), parent.completion.token_ids])
            np.testing.assert_array_equal(prompt[: stream.size], stream)


class _Watched:
    """The real factory, told the proxy's port, whose agents' ends are remembered."""

    def __init__(self, factory: AgentSessionFactory, proxy: FaultProxy) -> None:
        self.agent: AgentExit | None = None
        self._factory = factory
        self._proxy = proxy

    async def create(self, *, task: Task, endpoint: Endpoint, session_id: str) -> LoopOwningSession:
        port = self._proxy.port
        moved = msgspec.structs.replace(
            endpoint, base_url=endpoint.base_url.replace(f":{endpoint.port}/", f":{port}/"), port=port
        )
        session = await self._factory.create(task=task, endpoint=moved, session_id=session_id)
        _short_of_time_in_silence(session, self._proxy.silent)
        return _WatchedSession(self, session)


def _short_of_time_in_silence(session: AgentSession, silent: asyncio.Event) -> None:
    """What it does before a silence takes as long as it takes: the end of its time is not to fall into that."""
    sandbox: Any = session._sandbox
    start = sandbox.start

    async def started(*args: Any, **options: Any) -> Any:
        process = await start(*args, **options)
        wait = process.wait

        async def wait_shorter(timeout_s: float) -> ExecResult:
            ended, silence = asyncio.ensure_future(process._child.exited()), asyncio.ensure_future(silent.wait())
            began_s = time.monotonic()
            try:
                await asyncio.wait((ended, silence), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                # As the wait would that has not begun.
                await process.kill()
                raise
            finally:
                ended.cancel()
                silence.cancel()
            left_s = max(0.0, timeout_s - (time.monotonic() - began_s))
            return await wait(min(left_s, SILENCE_S) if silent.is_set() else left_s)

        process.wait = wait_shorter
        return process

    sandbox.start = started


class _WatchedSession:
    def __init__(self, watched: _Watched, session: LoopOwningSession) -> None:
        self._watched = watched
        self._session = session

    async def run(self) -> AgentExit:
        self._watched.agent = await self._session.run()
        return self._watched.agent

    async def verify(self) -> Score:
        return await self._session.verify()

    async def close(self) -> None:
        await self._session.close()
