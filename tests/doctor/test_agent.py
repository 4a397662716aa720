"""The check of the agent runs it, and says which of what can go wrong did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longrein.doctor.agent import Agent
from longrein.doctor.check import examine
from longrein.doctor.result import CheckResult
from longrein.gateway.settings import GatewaySettings
from longrein.harnesses.base import Harness
from longrein.harnesses.command import Command
from longrein.harnesses.opencode import OpenCode
from longrein.rollout.runtime import TokenizerSpec
from longrein.sandboxes.bubblewrap import BubblewrapBackend
from longrein.sessions.agent import AgentSessionFactory
from longrein.tasks.suite import ProceduralSuite
from tests import tiny

REPO = Path(__file__).parents[2]
TASKS = ProceduralSuite(families=("write_number",), agent_timeout_s=120.0)


async def examined(harness: Harness, **settings: Any) -> CheckResult:
    check = Agent(
        harness=lambda: harness,
        backend=BubblewrapBackend,
        factory=lambda: AgentSessionFactory(harness=harness, backend=BubblewrapBackend()),
        source=TokenizerSpec(tokenizer=tiny.tokenizer()),
        settings=GatewaySettings(**settings),
        tasks=lambda: TASKS.tasks("train", 1, 0),
    )
    return await examine(check, 300)


def bash_agent() -> Command:
    return Command.python_script(str(REPO / "examples" / "bash_agent.py"))


async def test_an_agent_that_asks_passes() -> None:
    finding = await examined(bash_agent())
    assert finding.status == "pass", finding
    assert finding.seen.startswith("command (Python 3.")
    assert "1 calls in chat" in finding.seen


async def test_a_missing_binary_is_told_with_the_way_to_install_it(tmp_path: Path) -> None:
    finding = await examined(OpenCode(binary=str(tmp_path / "opencode")))
    assert finding.status == "fail"
    assert "OpenCode is not installed" in finding.seen
    assert "make agents" in finding.seen


async def test_an_agent_that_never_asks_is_told_with_its_words() -> None:
    finding = await examined(Command(argv=("sh", "-c", "echo no model configured; exit 3")))
    assert finding.status == "fail"
    assert "exit code 3; it said: no model configured" in finding.seen


async def test_a_context_that_its_first_prompt_does_not_fit_in() -> None:
    finding = await examined(bash_agent(), context_length=150, max_tokens=20)
    assert finding.status == "fail"
    assert "does not fit in a context of 150 tokens" in finding.seen
    assert "model.context_length" in finding.fix


@pytest.mark.agents
async def test_a_real_agent_passes() -> None:
    finding = await examined(OpenCode(), context_length=100_000)
    assert finding.status == "pass", finding
    assert "opencode (1.18" in finding.seen
