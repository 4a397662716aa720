"""Harbor's own environment class behind our session factory: a real agent, its calls, its verdict."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

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
