"""Applications of two libraries in which several agents work, some of them without tools: all of it is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from longrein.harnesses.command import Command
from longrein.harnesses.installed import installed
from longrein.rows import rows_from_rollout
from longrein.types import Message
from tests.agents.rig import Ran, assert_exact, roles, run_agent
from tests.agents.script import call, say

pytestmark = pytest.mark.agents

APPS = Path(__file__).parent / "apps"
WRITTEN = "The file holds the number 42, and here is a text about it."


def app(name: str, **env: str) -> Command:
    return Command.python_script(str(APPS / f"{name}.py"), env=env, python=str(installed("library-agents/bin/python")))


def in_code(code: str) -> Message:
    return say(f"Thought: go on.\n<code>\n{code}\n</code>")


def assert_all_trained(ran: Ran, calls: int) -> None:
    assert roles(ran) == ["agent"] * calls, ran.why()
    assert_exact(ran)
    assert not rows_from_rollout(ran.rollout, advantage=1.0).untrained


async def test_an_agent_that_writes_code_and_manages_one_with_tools(tmp_path: Path) -> None:
    turns = [
        in_code("print(helper(task='look at the file'))"),
        call("look", {"path": "f"}),
        call("final_answer", {"answer": "it is 42"}),
        in_code("final_answer('42')"),
    ]
    ran = await run_agent(app("manager"), turns, tmp_path)
    assert ran.output.strip().endswith("42")
    assert_all_trained(ran, calls=4)


@pytest.mark.parametrize("api", ["responses", "chat_completions"])
async def test_a_writer_without_tools_to_whom_the_talk_is_handed(api: str, tmp_path: Path) -> None:
    look = call("look", {"path": "f"})
    turns = [look, call("transfer_to_writer", {}), say(WRITTEN), look, say("Checked.")]
    ran = await run_agent(app("handoff", OPENAI_API=api), turns, tmp_path)
    assert ran.output.strip().endswith("Checked.")
    assert_all_trained(ran, calls=5)
