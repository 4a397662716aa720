"""Check: the agent is there, starts in its sandbox, and its questions reach the gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from longrein.doctor.check import About
from longrein.doctor.result import Verdict, cannot_tell, failed, passed
from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.gateway.settings import GatewaySettings
from longrein.harnesses.base import Harness
from longrein.rollout.driver import Attempt
from longrein.rollout.runtime import RendererSource, open_gateway
from longrein.sandboxes.base import SandboxBackend, SandboxSpec
from longrein.sessions.base import SessionFactory
from longrein.types import Endpoint, Launch, Message, Rollout, Task

LONGEST_S = 120.0
"""One answer is all that the agent gets: it should be done long before."""
VERSION_TIMEOUT_S = 30.0
ANSWER: Message = {"role": "assistant", "content": "There is nothing to do. I am done."}
NOWHERE = Endpoint(
    base_url="http://127.0.0.1:1/key", api_key="key", model="policy", port=1, context_length=8192, max_tokens=256
)


class Agent:
    """Runs the real agent on one of the run's tasks, with a scripted model that says it is done.

    Args:
        harness: makes the harness. Raises :class:`~longrein.errors.ConfigError`.
        backend: makes the sandbox backend, likewise.
        factory: makes what makes the run's sessions, likewise.
        source: how conversations become tokens.
        settings: of the run's gateway.
        tasks: the run's tasks, of which the first is given to the agent.
    """

    about = About(name="agent", certifies="the agent is installed, and its questions get answers through the gateway")

    def __init__(
        self,
        harness: Callable[[], Harness],
        backend: Callable[[], SandboxBackend],
        factory: Callable[[], SessionFactory],
        source: RendererSource,
        settings: GatewaySettings,
        tasks: Callable[[], Sequence[Task]],
    ) -> None:
        self._harness = harness
        self._backend = backend
        self._factory = factory
        self._source = source
        self._settings = settings
        self._tasks = tasks

    async def run(self) -> Verdict:
        """See :class:`~longrein.doctor.check.Check`."""
        harness = self._harness()
        harness.check()
        task = self._tasks()[0]
        task = msgspec.structs.replace(task, agent_timeout_s=min(task.agent_timeout_s, LONGEST_S))
        version = await _version(harness.launch(task, NOWHERE), self._backend())
        rollout = await self._session(self._factory(), task)
        return self._judged(rollout, f"{harness.name} ({version})")

    async def _session(self, factory: SessionFactory, task: Task) -> Rollout:
        renderer = self._source.load()
        engine = ScriptedEngine(
            TurnList(renderer, (ANSWER,)),
            vocab_size=renderer.vocab_size,
            context_length=self._settings.context_length,
        )
        async with open_gateway(engine, renderer, self._settings, factory, max_retries=0) as runtime:
            attempt = Attempt(rollout_id="doctor-agent", group_id="doctor", task=task, seed=0)
            return await runtime.driver.run(attempt)

    def _judged(self, rollout: Rollout, agent: str) -> Verdict:
        calls = rollout.trace.calls
        context = self._settings.context_length
        if rollout.metrics.get("refused_context_length_exceeded"):
            return failed(
                f"{agent}: a prompt of its does not fit in a context of {context} tokens",
                "raise model.context_length, or take tools away from the agent (harness.options)",
            )
        if not calls:
            why = rollout.failure.message if rollout.failure else rollout.status
            return failed(f"{agent}: {why}", "run it by hand in a terminal; longrein rollout -n 1 --show shows more")
        lost = sum(not call.delivered for call in calls)
        if lost:
            return failed(f"{agent}: {lost} of {len(calls)} answers did not reach it", "see what the agent printed")
        largest = max(rollout.trace.prompt_ids(call).size for call in calls)
        told = f"{agent}: {len(calls)} calls in {calls[0].dialect}, prompts up to {largest} of {context} tokens"
        if rollout.status == "timed_out":
            return cannot_tell(f"{told}; it did not end of itself", "see why it goes on after its last answer")
        return passed(told)


async def _version(launch: Launch, backend: SandboxBackend) -> str:
    """What the agent's program says to ``--version`` inside a sandbox; in other words where it says nothing."""
    program = _program(launch.argv)
    sandbox = await backend.create(SandboxSpec(readonly_mounts=launch.readonly_mounts))
    try:
        result = await sandbox.exec((*program, "--version"), timeout_s=VERSION_TIMEOUT_S)
    finally:
        await sandbox.close()
    lines = (result.stdout + b"\n" + result.stderr).decode(errors="replace").splitlines()
    versions = [line.strip() for line in lines if any(character.isdigit() for character in line)]
    return versions[0][:80] if versions and result.exit_code == 0 else f"{Path(program[-1]).name}, no version told"


def _program(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The beginning of a command line that names the program: ``node --option script``, say."""
    named = [at for at, word in enumerate(argv[:4]) if word.startswith("/") and Path(word).is_file()]
    return argv[: named[-1] + 1] if named else argv[:1]
