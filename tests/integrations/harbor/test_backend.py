"""Harbor's own environment class behind our session factory: a real agent, its calls, its verdict."""

from __future__ import annotations

import asyncio
import pickle
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from longrein.errors import ConfigError, SandboxError
from longrein.harnesses.command import Command
from longrein.integrations.harbor import HarborBackend
from longrein.rollout.driver import Attempt, LoopOwningDriver
from longrein.sandboxes.base import SandboxSpec
from longrein.sessions.agent import AgentSessionFactory
from longrein.types import Task
from tests import tiny
from tests.gateway.rig import rig, say

OURS = "longrein.integrations.harbor:BubblewrapEnvironment"
CHECK = b"""#!/bin/sh
[ "$(cat answer.txt)" = 42 ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""


@pytest.mark.skipif("sys.version_info >= (3, 12)")
async def test_without_harbor_it_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"longrein\[harbor\]"):
        await HarborBackend("docker", image="debian:12").create(SandboxSpec())


class Broken:
    """One of Harbor's environments, of which something is there and something else fails."""

    made: Broken

    def __init__(self, fails: str, **_: Any) -> None:
        Broken.made = self
        self.fails = fails
        self.stops = 0
        self.starting = asyncio.Event()

    async def start(self, force_build: bool) -> None:
        self.starting.set()
        if self.fails == "start":
            raise KeyError("no quota for its network")
        if self.fails == "never":
            await asyncio.sleep(3600)

    async def exec(self, *_: Any, **__: Any) -> None:
        raise KeyError("no quota for commands")

    async def stop(self, delete: bool) -> None:
        assert delete
        self.stops += 1
        raise KeyError("no quota for deleting")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As many of Harbor's names as a backend uses, for a Python that Harbor is not for."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    anything = SimpleNamespace
    names = {
        "environments.factory": {"EnvironmentFactory": anything(get_environment_class=lambda **_: Broken)},
        "models.task.config": {"EnvironmentConfig": anything, "NetworkPolicy": anything},
        "models.trial.paths": {"TrialPaths": lambda folder: anything(trial_dir=folder)},
    }
    for name, content in names.items():
        module = ModuleType(f"harbor.{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, f"harbor.{name}", module)
    yield
    assert not list(tmp_path.glob("longrein-harbor-*"))


@pytest.mark.parametrize(("fails", "said"), [("start", "its network"), ("commands", "for commands")])
async def test_an_environment_that_started_half_way_is_told_to_stop(broken: None, fails: str, said: str) -> None:
    """Only its provider knows what is there of it; the first error is what a reader needs."""
    with pytest.raises(SandboxError, match=said):
        await HarborBackend("a:Class", image="any", kwargs={"fails": fails}).create(SandboxSpec())
    assert Broken.made.stops == 1


async def test_an_environment_that_nobody_waits_for_any_more_is_told_to_stop(broken: None) -> None:
    backend = HarborBackend("a:Class", image="any", kwargs={"fails": "never"})
    creating = asyncio.create_task(backend.create(SandboxSpec()))
    await asyncio.sleep(0)
    await asyncio.wait_for(Broken.made.starting.wait(), 20)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert Broken.made.stops == 1


@pytest.mark.harbor
class TestOnHarbor:
    @pytest.fixture(autouse=True)
    def harbor(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        pytest.importorskip("harbor", reason="Harbor needs Python 3.12, and make test-harbor found none")

    @pytest.mark.parametrize(("behaviour", "reward"), [("good", 1.0), ("idle", 0.0)])
    async def test_an_agent_works_and_is_judged_in_harbors_environments(
        self, behaviour: str, reward: float, tmp_path: Path
    ) -> None:
        task = Task(task_id="t", prompt=f"{behaviour} and write the answer", tests={"test.sh": CHECK})
        backend = pickle.loads(pickle.dumps(HarborBackend(OURS, image="any")))
        # The environment's own Python: a mount of ours would be copied into it.
        script = (tiny.DATA / "agents" / "fickle.py").read_bytes()
        harness = Command(("python3", "$HOME/agent.py"), files={"agent.py": script})
        async with rig([say("ok")]) as on:
            driver = LoopOwningDriver(on.gateway, AgentSessionFactory(harness=harness, backend=backend))
            rollout = await driver.run(Attempt(rollout_id="r", group_id="g", task=task, seed=0))
        assert rollout.failure is None and rollout.score.reward == reward
        assert [call.delivered for call in rollout.trace.calls] == [True]
        assert not list(tmp_path.glob("longrein-harbor-*"))

    async def test_an_environment_that_cannot_be_is_told_before_or_as_a_fault_of_the_world(
        self, tmp_path: Path
    ) -> None:
        for name in ("no-such-provider", "longrein.integrations.harbor:Nothing", "no.such:Thing"):
            with pytest.raises(ConfigError, match="cannot be used"):
                await HarborBackend(name, image="any").create(SandboxSpec())
        with pytest.raises(SandboxError, match="starting"):
            await HarborBackend(OURS, image="any", network_mode="allowlist").create(SandboxSpec())
        with pytest.raises(SandboxError):
            await HarborBackend(OURS, image="any", kwargs={"folders": ["/usr/x"]}).create(SandboxSpec())
        assert not list(tmp_path.glob("longrein-harbor-*"))
