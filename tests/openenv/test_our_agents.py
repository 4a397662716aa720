"""Our agents in OpenEnv's world: its contract checks, its rollout function, its collector."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longrein.engines.scripted import ScriptedEngineSpec
from longrein.errors import ConfigError
from longrein.gateway.settings import GatewaySettings
from longrein.harnesses.command import Command
from longrein.rollout.openenv_agents import AgentsOwnLoop, OpenEnvAgents
from longrein.rollout.runtime import RendererSpec
from longrein.sandboxes.choose import choose_backend
from longrein.sessions.agent import AgentSessionFactory
from longrein.types import Message, Task
from tests import tiny

pytestmark = pytest.mark.openenv
AGENT = """
import json, os, sys, time, urllib.request
task = os.environ["TASK_PROMPT"]
messages = [{"role": "user", "content": task}]
for turn in range(2):
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    said = json.load(urllib.request.urlopen(url, data=body))["choices"][0]["message"]
    messages += [{"role": "assistant", "content": said["content"]}, {"role": "user", "content": "and?"}]
open("answer.txt", "w").write(said["content"])
if "sleep" in task:
    time.sleep(600)
sys.exit(4)
"""
CHECK = b"""#!/bin/sh
root="${SANDBOX_ROOT:-}"
if [ "$(cat answer.txt 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > "$root/logs/verifier/reward.txt"
"""
TURNS: tuple[Message, ...] = ({"role": "assistant", "content": "think"}, {"role": "assistant", "content": "42"})


def task(prompt: str = "what is it?", timeout_s: float = 30.0) -> Task:
    return Task(task_id="t", prompt=prompt, tests={"test.sh": CHECK}, agent_timeout_s=timeout_s)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[OpenEnvAgents]:
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    model = str(tmp_path / "model")
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    made = OpenEnvAgents(
        factory=AgentSessionFactory(harness=Command.python_script(str(script)), backend=choose_backend("auto")),
        engine=ScriptedEngineSpec(model=model, turns=TURNS),
        renderer=RendererSpec(model=model),
        gateway=GatewaySettings(context_length=2048, max_tokens=64),
    )
    made = pickle.loads(pickle.dumps(made))
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "longrein-openenv"]


def test_sessions_meet_openenvs_contracts(agents: OpenEnvAgents) -> None:
    from openenv.core.harness import (
        HarnessAdapter,
        LoopOwningSession,
        ResourceSession,
        ResourceSessionFactory,
        TrainableSession,
        TrainingTrace,
        VerifyResult,
    )

    assert isinstance(agents, ResourceSessionFactory) and isinstance(AgentsOwnLoop(), HarnessAdapter)
    session = agents.create(task(), seed=1, episode_id="e1")
    try:
        for contract in (ResourceSession, LoopOwningSession, TrainableSession):
            assert isinstance(session, contract)
        assert session.initial_messages() == [{"role": "user", "content": "what is it?"}]
        assert session.list_tools() == []
        with pytest.raises(KeyError, match="Unknown tool"):
            session.call_tool("bash", {})
        assert session.wait_for_completion(60) == 4
        trace = session.fetch_training_trace()
        assert isinstance(trace, TrainingTrace) and len(trace.turns) == 2
        assert (
            trace.turns[1].prompt_token_ids[: len(trace.turns[0].prompt_token_ids)] == trace.turns[0].prompt_token_ids
        )
        entries = session.fetch_proxy_trace()
        assert [entry["completion_token_ids"] for entry in entries] == [t.completion_token_ids for t in trace.turns]
        verdict = session.verify([])
        assert isinstance(verdict, VerifyResult) and verdict.env_reward == 1.0
        assert len(session.fetch_proxy_trace()) == 2, "the trace outlives the endpoint"
    finally:
        session.close()
        session.close()


def test_agent_out_of_time_raises_what_openenv_expects_and_keeps_its_turns(agents: OpenEnvAgents) -> None:
    for created, timeout_s in ((task("sleep", 10.0), None), (task("sleep", 600.0), 10.0)):
        session = agents.create(created)
        with pytest.raises(TimeoutError):
            session.wait_for_completion(timeout_s)
        assert len(session.fetch_proxy_trace()) == 2
        assert session.verify([]).env_reward == 1.0
        session.close()


def test_build_harness_rollout_func(agents: OpenEnvAgents) -> None:
    from openenv.core.harness import build_harness_rollout_func

    asked: list[Any] = []
    rollout = build_harness_rollout_func(
        session_factory=agents,
        harness_adapter=AgentsOwnLoop(),  # type: ignore[arg-type]
        model_step_builder=lambda trainer, session: asked.append((trainer, session)),  # type: ignore[arg-type, return-value]
    )
    made = rollout([task(), {"prompt": "a row", "tests": {"test.sh": CHECK}}], "trainer")
    assert made["env_reward"] == [1.0, 1.0] and [trainer for trainer, _ in asked] == ["trainer"] * 2
    for prompts, completions, logprobs in zip(
        made["prompt_ids"], made["completion_ids"], made["logprobs"], strict=True
    ):
        assert len(completions) == len(logprobs) > 0 and len(prompts) > len(completions)


def test_collect_runner_writes_our_agents_conversation(agents: OpenEnvAgents, tmp_path: Path) -> None:
    from openenv.core.harness.collect import CollectRunner, RolloutSerializer

    serializer = RolloutSerializer(tmp_path / "collected")
    runner = CollectRunner(
        session_factory=agents,  # type: ignore[arg-type]
        harness_adapter=AgentsOwnLoop(),  # type: ignore[arg-type]
        serializer=serializer,
        tasks=[{"prompt": "a row", "tests": {"test.sh": CHECK.decode()}}],
    )
    collected = runner.run(model_step=None, num_episodes=1)  # type: ignore[arg-type]
    assert (collected.num_collected, collected.num_failed, collected.avg_reward) == (1, 0, 1.0)
    assert '"content": "42"' in serializer.results_path.read_text()


def test_task_that_is_none_is_refused(agents: OpenEnvAgents) -> None:
    with pytest.raises(ConfigError, match="task is int"):
        agents.create(3)


def test_importing_our_half_never_imports_openenv() -> None:
    import subprocess

    script = "import sys, longrein.rollout.openenv_agents, longrein.rollout.worker; print('openenv' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"
