"""The real Claude Code against a scripted model: tools, sub-agents, compaction, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from longrein.harnesses.claude_code import TOOLS, ClaudeCode
from tests.agents.branches import delegate, delegate_at_once
from tests.agents.content import reason
from tests.agents.fault_proxy import Arrival, CutStream, Http429, once
from tests.agents.faults import ENGINE_FAILED, FAILED, Ending, Player, endure
from tests.agents.rig import AWKWARD, assert_done, assert_one_row, roles, run_agent
from tests.agents.script import ByPrompt, call, calls, say

pytestmark = pytest.mark.agents

WRITE = call("Bash", {"command": "mkdir -p notes && echo long reins > notes/answer.txt"})
LOOK = ("Bash", {"command": "cat notes/answer.txt"})
READ = ("Read", {"file_path": "/workdir/notes/answer.txt"})
SUMMARY = "SUMMARY: the file notes/answer.txt is written."
COUNT = call("Bash", {"command": "seq 1 2000"})
PLAYER = Player(harness=ClaudeCode(), write=WRITE, done=say("Done."), long=COUNT, tool="Bash")
DELEGATES = msgspec.structs.replace(PLAYER, harness=ClaudeCode(tools=(*TOOLS, "Task")))


async def test_a_task_with_parallel_tool_calls(tmp_path: Path) -> None:
    ran = await run_agent(ClaudeCode(), [WRITE, calls(LOOK, READ), say("Done.")], tmp_path)
    assert_done(ran)
    assert_one_row(ran)
    assert len(ran.trace.calls) == 3
    results = [one for one in ran.trace.calls[2].messages if one["role"] == "tool"]
    assert ["long reins" in json.dumps(one) for one in results] == [True, True]


async def test_an_awkward_prompt_arrives_as_it_is(tmp_path: Path) -> None:
    ran = await run_agent(ClaudeCode(), [say("No.")], tmp_path, task=AWKWARD)
    assert ran.posts[0].body["messages"][0]["content"] == [{"type": "text", "text": AWKWARD.prompt}], ran.why()


async def test_reasoning_comes_back_and_is_never_shown_as_text(tmp_path: Path) -> None:
    ran = await reason(PLAYER, tmp_path)
    assert "First the file." in json.dumps(ran.posts[1].body), "it sends back what it was given"


async def test_a_sub_agent_is_a_branch_of_its_own(tmp_path: Path) -> None:
    start = call("Agent", {"description": "write", "prompt": "SUBTASK: write it", "subagent_type": "general-purpose"})
    await delegate(DELEGATES, start, tmp_path)


async def test_sub_agents_at_the_same_time_stay_apart(tmp_path: Path) -> None:
    def start(name: str) -> tuple[str, dict[str, str]]:
        return "Agent", {"description": name, "prompt": f"SUBTASK {name}: go", "subagent_type": "general-purpose"}

    await delegate_at_once(DELEGATES, start, LOOK, tmp_path)


async def test_compaction_is_a_branch_that_the_conversation_goes_on_from(tmp_path: Path) -> None:
    asked = "Your task is to create a detailed summary"
    summary = (asked, [say(f"<analysis>Well.</analysis>\n<summary>\n{SUMMARY}\n</summary>")])
    script = ByPrompt([summary, (SUMMARY, [say("Done.")])], [WRITE, COUNT])
    ran = await run_agent(ClaudeCode(compact_at=30_000), script, tmp_path)
    assert_done(ran)
    *work, compaction, rebuilt = ran.trace.calls
    assert [one.parent_id for one in work] == [None, *range(len(work) - 1)], ran.why()
    assert compaction.parent_id is not None, "it asks at the end of the conversation, with the same tools"
    assert rebuilt.parent_id is None
    assert roles(ran) == [*["agent"] * len(work), "compaction", "agent"], ran.why()
    assert SUMMARY in json.dumps(rebuilt.messages)


async def test_a_429_is_asked_again_after_what_it_says(tmp_path: Path) -> None:
    ran = await run_agent(ClaudeCode(), [WRITE, say("Done.")], tmp_path, faults=[once(Http429(), post=2)])
    assert_done(ran)
    assert_one_row(ran)
    assert 1.9 <= ran.posts[2].at_s - ran.posts[1].at_s < 60.0


async def test_a_connection_cut_while_the_model_thinks_is_one_generation(tmp_path: Path) -> None:
    again = asyncio.Event()
    turns = [WRITE, again, say("Done.")]
    faults = [once(CutStream(after_bytes=1), post=2), once(Arrival(come=again), post=3)]
    ran = await run_agent(ClaudeCode(), turns, tmp_path, faults=faults, keep_alive_s=0.1, abandon_grace_s=300.0)
    assert_done(ran)
    assert_one_row(ran)
    assert (len(ran.posts), len(ran.requests), len(ran.trace.calls)) == (3, 2, 2), ran.why()


ENDINGS = {
    "500 once": Ending(posts=3),
    "500 later": Ending(posts=3),
    "500 always": FAILED,
    "cut": Ending(posts=3),
    "silence": Ending(status="timed_out"),
    "engine fails once": Ending(posts=2),
    "engine is gone": ENGINE_FAILED,
    "overflow": Ending(status="truncated", context_length=40_000),
    "bad JSON": Ending(reward=0.0, posts=1),
    "wrong arguments": Ending(posts=3),
    "slow model": Ending(posts=2),
    "endless": Ending(status="truncated", posts=5),
}
"""It tries once more."""


@pytest.mark.parametrize("column", ENDINGS)
async def test_what_goes_wrong(column: str, tmp_path: Path) -> None:
    await endure(PLAYER, column, ENDINGS[column], tmp_path)
