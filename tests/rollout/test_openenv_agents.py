"""Our agents in OpenEnv's shape, as far as its package is not needed: nothing of an episode outlives its owner."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from longrein.engines.scripted import ScriptedEngineSpec
from longrein.gateway.settings import GatewaySettings
from longrein.harnesses.command import Command
from longrein.rollout.driving import AgentLoops
from longrein.rollout.openenv_agents import AgentEpisode, Backstage
from longrein.rollout.runtime import RendererSpec, RuntimeSettings
from longrein.sandboxes.local import SubprocessBackend
from longrein.sessions.agent import AgentSessionFactory
from longrein.types import Task
from tests import tiny

TASK = Task(task_id="t", prompt="p", files={"here.txt": b""}, tests={"test.sh": b"true"})


@pytest.fixture
def factory(tmp_path: Path) -> AgentSessionFactory:
    return AgentSessionFactory(harness=Command(("true",)), backend=SubprocessBackend(root=str(tmp_path / "boxes")))


@pytest.fixture
def backstage(tmp_path: Path, factory: AgentSessionFactory) -> Iterator[Backstage]:
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    model = str(tmp_path / "model")
    settings = RuntimeSettings(
        engine=ScriptedEngineSpec(model=model),
        renderer=RendererSpec(model=model),
        gateway=GatewaySettings(context_length=2048, max_tokens=64),
        driving=AgentLoops(factory=factory),
    )
    made = Backstage(settings)
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "longrein-openenv"]


def boxes(folder: Path) -> list[Path]:
    return list((folder / "boxes").rglob("here.txt"))


@pytest.mark.filterwarnings("ignore:sandboxes are plain subprocesses")
def test_what_nobody_closed_ends_with_the_gateway_and_can_be_closed_after_it(
    tmp_path: Path, factory: AgentSessionFactory, backstage: Backstage
) -> None:
    episodes = [AgentEpisode(backstage, factory, TASK, name) for name in ("one", "two")]
    assert len(boxes(tmp_path)) == 2
    episodes[0].close()
    episodes[0].close()
    assert len(boxes(tmp_path)) == 1
    backstage.close()
    assert not boxes(tmp_path)
    for episode in episodes:
        episode.close()
