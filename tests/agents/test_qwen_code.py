"""The real Qwen Code against a scripted model: tools, sub-agents, compaction, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longrein.harnesses.qwen_code import TOOLS, QwenCode
from tests.agents.branches import assert_one_sub_agent, assert_rebuilt
from tests.agents.content import assert_prompt_arrives, reason
from tests.agents.faults import ENGINE_FAILED, Ending, Player, endure
from tests.agents.rig import assert_done, assert_one_row, run_agent
from tests.agents.script import ByPrompt, call, calls, say

pytestmark = pytest.mark.agents

WRITE = call("write_file", {"file_path": "/workdir/notes/answer.txt", "content": "long reins\n"})
LONG = call("run_shell_command", {"command": "yes longreins | head -c 9000", "is_background": False})
PLAYER = Player(harness=QwenCode(), write=WRITE, done=say("Done."), long=LONG, tool="run_shell_command")


async def test_a_task_with_parallel_tool_calls(tmp_path: Path) -> None:
    cat = ("run_shell_command", {"command": "cat notes/answer.txt", "is_background": False})
    look = calls(cat, ("glob", {"pattern": "**/*.txt"}), ("grep_search", {"pattern": "reins"}), text="Look.")
    ran = await run_agent(QwenCode(), [WRITE, look, say("Done.")], tmp_path)
    assert_done(ran)
    assert_one_row(ran)
    assert len(ran.trace.calls) == 3, "nothing beside: no titles, no memories"
    assert sorted(tool["function"]["name"] for tool in ran.trace.calls[0].tools) == sorted(TOOLS)
    results = [json.dumps(one) for one in ran.trace.calls[2].messages if one["role"] == "tool"]
    assert ["long reins" in results[0], "answer.txt" in results[1], "answer.txt" in results[2]] == [True] * 3
    assert "ipgrep not available" not in ran.output


async def test_a_sub_agent_works_beside_the_agent_on_a_branch_of_its_own(tmp_path: Path) -> None:
    arguments = {"description": "count", "prompt": "SUBTASK: count the letters", "subagent_type": "general-purpose"}
    subagent = (lambda prompt: "You are a general-purpose" in prompt, [LONG, say("Five.")])
    script = ByPrompt([subagent], [call("agent", arguments), WRITE, say("Done.")])
    ran = await run_agent(QwenCode(tools=(*TOOLS, "agent")), script, tmp_path)
    assert_one_sub_agent(ran)
    last = ran.trace.calls[-1]
    assert last.role == "agent" and "Five." in json.dumps(last.messages), "the agent is told of it in the end"


async def test_compaction_is_a_branch_that_the_conversation_goes_on_from(tmp_path: Path) -> None:
    long = call("run_shell_command", {"command": "yes longreins | head -c 20000", "is_background": False})
    summary = (
        lambda prompt: "about to overflow" in prompt.split("<|im_start|>user")[-1],
        [say("<state_snapshot>SUMMARY: the file must be written yet.</state_snapshot>")],
    )
    ran = await run_agent(QwenCode(), ByPrompt([summary], [long, WRITE, say("Done.")]), tmp_path, context_length=70_000)
    assert_rebuilt(ran, compaction=1)


async def test_an_awkward_prompt_arrives_as_it_is(tmp_path: Path) -> None:
    await assert_prompt_arrives(PLAYER, tmp_path)


async def test_thoughts_come_back(tmp_path: Path) -> None:
    ran = await reason(PLAYER, tmp_path)
    assert "First the file." in json.dumps(ran.posts[1].body)


ENDINGS = {
    "500 once": Ending(posts=3),
    "500 later": Ending(posts=3),
    "500 always": Ending(status="timed_out", reward=None, failure="no_calls", agent_s=8.0),
    "429": Ending(posts=3),
    "cut": Ending(posts=3),
    "silence": Ending(status="timed_out"),
    "engine fails once": Ending(posts=2),
    "engine is gone": ENGINE_FAILED,
    "overflow": Ending(status="truncated", reward=0.0, context_length=1_000, posts=1),
    "bad JSON": Ending(reward=0.0, posts=1),
    "endless": Ending(status="truncated", posts=5),
}
"""Seven tries in 82 s cannot be switched off; what the gateway itself answers is not tried again."""


@pytest.mark.parametrize("column", ENDINGS)
async def test_what_goes_wrong(column: str, tmp_path: Path) -> None:
    await endure(PLAYER, column, ENDINGS[column], tmp_path)
