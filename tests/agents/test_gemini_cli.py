"""The real Gemini CLI against a scripted model: tools, sub-agents, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longrein.engines.scripted import Delay
from longrein.harnesses.gemini_cli import TOOLS, GeminiCLI
from tests.agents.branches import assert_one_sub_agent
from tests.agents.content import assert_prompt_arrives, reason
from tests.agents.faults import ENGINE_FAILED, FAILED, Ending, Player, endure
from tests.agents.rig import assert_done, assert_one_row, run_agent
from tests.agents.script import ByPrompt, call, calls, say

pytestmark = pytest.mark.agents

WRITE = call("write_file", {"file_path": "/workdir/notes/answer.txt", "content": "long reins\n"})
LONG = call("run_shell_command", {"command": "yes longreins | head -c 9000"})
PLAYER = Player(harness=GeminiCLI(), write=WRITE, done=say("Done."), long=LONG, tool="run_shell_command")


async def test_a_task_with_parallel_tool_calls(tmp_path: Path) -> None:
    look = calls(
        ("run_shell_command", {"command": "cat notes/answer.txt"}),
        ("list_directory", {"dir_path": "/workdir"}),
        text="Look.",
    )
    ran = await run_agent(GeminiCLI(), [WRITE, look, say("Done.")], tmp_path)
    assert_done(ran)
    assert_one_row(ran)
    assert len(ran.trace.calls) == 3, "nothing beside: no routing, no titles"
    assert sorted(tool["function"]["name"] for tool in ran.trace.calls[0].tools) == sorted(TOOLS)
    assert {one.dialect for one in ran.trace.calls} == {"gemini"}
    results = [json.dumps(one) for one in ran.trace.calls[2].messages if one["role"] == "tool"]
    assert ["long reins" in results[0], "notes" in results[1]] == [True, True]


async def test_a_sub_agent_has_a_branch_of_its_own(tmp_path: Path) -> None:
    invoke = call("invoke_agent", {"agent_name": "generalist", "prompt": "SUBTASK: count the letters"})
    complete = call("complete_task", {"result": {"response": "Five."}})
    subagent = (lambda prompt: "complete_task" in prompt, [LONG, complete])
    ran = await run_agent(
        GeminiCLI(tools=(*TOOLS, "invoke_agent", "complete_task")),
        ByPrompt([subagent], [invoke, WRITE, say("Done.")]),
        tmp_path,
    )
    assert_one_sub_agent(ran)
    told = [one for one in ran.agent_calls() if "Five." in json.dumps(one.messages)]
    assert len(told) == 1, ran.why()


async def test_a_model_that_takes_more_than_a_minute_is_waited_for(tmp_path: Path) -> None:
    """Where nothing comes, it asks again after 60 s; keep-alives are something."""
    ran = await run_agent(GeminiCLI(), [Delay(seconds=65.0), WRITE, say("Done.")], tmp_path)
    assert_done(ran)
    assert_one_row(ran)
    assert len(ran.posts) == 2


async def test_an_awkward_prompt_arrives_as_it_is(tmp_path: Path) -> None:
    await assert_prompt_arrives(PLAYER, tmp_path)


async def test_thoughts_are_dropped_and_one_conversation_is_one_row_all_the_same(tmp_path: Path) -> None:
    ran = await reason(PLAYER, tmp_path)
    assert "First the file." not in json.dumps(ran.posts[1].body)


ENDINGS = {
    "500 once": FAILED,
    "500 later": Ending(posts=2),
    "500 always": FAILED,
    "429": FAILED,
    "cut": Ending(posts=2),
    "silence": Ending(status="timed_out"),
    "engine fails once": Ending(posts=2),
    "engine is gone": ENGINE_FAILED,
    "overflow": Ending(status="truncated", context_length=60_000),
    "bad JSON": Ending(reward=0.0, posts=1),
    "endless": Ending(status="truncated", posts=5),
}
"""Its own retries are off."""


@pytest.mark.parametrize("column", ENDINGS)
async def test_what_goes_wrong(column: str, tmp_path: Path) -> None:
    await endure(PLAYER, column, ENDINGS[column], tmp_path)
