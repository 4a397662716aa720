"""The real mini-swe-agent against a scripted model, with a tool and in text, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longrein.harnesses.mini_swe_agent import MiniSweAgent
from longrein.types import Message
from tests.agents.content import assert_prompt_arrives, reason
from tests.agents.faults import ENGINE_FAILED, FAILED, Ending, Player, endure
from tests.agents.rig import assert_done, assert_one_row, run_agent
from tests.agents.script import call, calls, say

pytestmark = pytest.mark.agents

WRITE_COMMAND = "mkdir notes && echo long reins > notes/answer.txt"
DONE_COMMAND = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
WRITE = call("bash", {"command": WRITE_COMMAND})
DONE = call("bash", {"command": DONE_COMMAND})
LONG = call("bash", {"command": "yes longreins | head -c 9000"})
PLAYER = Player(harness=MiniSweAgent(), write=WRITE, done=DONE, long=LONG, tool="bash")


def in_text(command: str) -> Message:
    return say(f"THOUGHT: go on.\n\n```mswea_bash_command\n{command}\n```")


async def test_a_task_with_parallel_tool_calls(tmp_path: Path) -> None:
    look = calls(("bash", {"command": "cat notes/answer.txt"}), ("bash", {"command": "ls"}), text="Look.")
    ran = await run_agent(MiniSweAgent(), [WRITE, look, DONE], tmp_path)
    assert_done(ran)
    assert_one_row(ran)
    assert len(ran.trace.calls) == 3
    results = [json.dumps(one) for one in ran.trace.calls[2].messages if one["role"] == "tool"]
    assert ["long reins" in results[0], "notes" in results[1]] == [True, True]


async def test_a_task_in_text(tmp_path: Path) -> None:
    turns = [in_text(WRITE_COMMAND), say("No command."), in_text("cat notes/answer.txt"), in_text(DONE_COMMAND)]
    ran = await run_agent(MiniSweAgent(mode="text"), turns, tmp_path)
    assert_done(ran)
    assert not ran.trace.calls[0].tools
    assert "long reins" in json.dumps(ran.trace.calls[3].messages)
    # A turn without a command is dropped from the history: what came before it goes on in another row.
    assert [one.parent_id for one in ran.trace.calls] == [None, 0, 0, 2], ran.why()


async def test_an_awkward_prompt_arrives_as_it_is(tmp_path: Path) -> None:
    await assert_prompt_arrives(PLAYER, tmp_path)


async def test_thoughts_come_back(tmp_path: Path) -> None:
    ran = await reason(PLAYER, tmp_path)
    assert "First the file." in json.dumps(ran.posts[1].body)


ENDINGS = {
    "500 once": FAILED,
    "500 later": Ending(posts=2),
    "429": FAILED,
    "silence": Ending(status="timed_out"),
    "engine fails once": Ending(posts=2),
    "engine is gone": ENGINE_FAILED,
    "overflow": Ending(status="truncated", context_length=20_000),
    "bad JSON": Ending(posts=3),
    "endless": Ending(status="truncated"),
}
"""Its own retries are off. It does not stream, so that nothing can be cut in the middle."""


@pytest.mark.parametrize("column", ENDINGS)
async def test_what_goes_wrong(column: str, tmp_path: Path) -> None:
    await endure(PLAYER, column, ENDINGS[column], tmp_path)


@pytest.mark.parametrize("column", ["engine is gone", "endless"])
async def test_what_the_gateway_says_at_the_end_is_understood_in_text(column: str, tmp_path: Path) -> None:
    harness = MiniSweAgent(mode="text")
    player = Player(harness=harness, write=in_text(WRITE_COMMAND), done=in_text(DONE_COMMAND))
    await endure(player, column, ENDINGS[column], tmp_path)
