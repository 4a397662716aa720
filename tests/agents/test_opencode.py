"""The real OpenCode against a scripted model: tools, sub-agents, compaction, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from longrein.harnesses.opencode import OpenCode
from tests.agents.branches import compact, delegate, delegate_at_once, without_tools
from tests.agents.content import assert_prompt_arrives, reason
from tests.agents.fault_proxy import Arrival, CutStream, Http429, once
from tests.agents.faults import ENGINE_FAILED, Ending, Player, endure
from tests.agents.rig import assert_done, assert_exact, assert_one_row, run_agent
from tests.agents.script import ByPrompt, call, calls, say

pytestmark = pytest.mark.agents

WRITE = call("write", {"filePath": "/workdir/notes/answer.txt", "content": "long reins\n"})
LOOK = ("bash", {"command": "cat notes/answer.txt", "description": "look at it"})
COUNT = call("bash", {"command": "seq 1 1200", "description": "count"})
PLAYER = Player(harness=OpenCode(), write=WRITE, done=say("Done."), long=COUNT, tool="bash")
WITH_SUBAGENTS = OpenCode(denied_tools=("webfetch", "skill", "todowrite", "question"))
DELEGATES = msgspec.structs.replace(PLAYER, harness=WITH_SUBAGENTS)


async def test_a_task_with_parallel_tool_calls(tmp_path: Path) -> None:
    ran = await run_agent(OpenCode(), [WRITE, calls(LOOK, LOOK), say("Done.")], tmp_path)
    assert_done(ran)
    assert_one_row(ran)
    assert len(ran.trace.calls) == 3
    results = [one for one in ran.trace.calls[2].messages if one["role"] == "tool"]
    assert len(results) == 2, "both calls were run, and their results came back in one request"


async def test_an_awkward_prompt_arrives_as_it_is(tmp_path: Path) -> None:
    await assert_prompt_arrives(PLAYER, tmp_path)


async def test_reasoning_comes_back_and_is_never_shown_as_text(tmp_path: Path) -> None:
    ran = await reason(PLAYER, tmp_path)
    assert "First the file." in json.dumps(ran.posts[1].body), "it sends back what it was given"


async def test_a_sub_agent_is_a_branch_of_its_own(tmp_path: Path) -> None:
    start = {"description": "sub", "prompt": "SUBTASK: write the file", "subagent_type": "general"}
    await delegate(DELEGATES, call("task", start), tmp_path)


async def test_sub_agents_at_the_same_time_stay_apart(tmp_path: Path) -> None:
    def start(name: str) -> tuple[str, dict[str, str]]:
        return "task", {"description": name, "prompt": f"SUBTASK {name}: go", "subagent_type": "general"}

    await delegate_at_once(DELEGATES, start, LOOK, tmp_path)


async def test_compaction_is_a_branch_that_the_conversation_goes_on_from(tmp_path: Path) -> None:
    await compact(PLAYER, OpenCode(compact_at=40_000), tmp_path)


async def test_a_429_is_asked_again_after_what_it_says(tmp_path: Path) -> None:
    ran = await run_agent(OpenCode(), [WRITE, say("Done.")], tmp_path, faults=[once(Http429(), post=2)])
    assert_done(ran)
    assert_one_row(ran)
    assert 2.0 <= ran.posts[2].at_s - ran.posts[1].at_s < 60.0


async def test_a_connection_cut_while_the_model_thinks_is_one_generation(tmp_path: Path) -> None:
    again = asyncio.Event()
    turns = [WRITE, again, say("Done.")]
    faults = [once(CutStream(after_bytes=1), post=2), once(Arrival(come=again), post=3)]
    ran = await run_agent(OpenCode(), turns, tmp_path, faults=faults, keep_alive_s=0.1, abandon_grace_s=300.0)
    assert_done(ran)
    assert_one_row(ran)
    assert (len(ran.posts), len(ran.requests), len(ran.trace.calls)) == (3, 2, 2), ran.why()


async def test_its_endless_compaction_ends_of_itself(tmp_path: Path) -> None:
    """Not even the first prompt fits, so it summarises, asks again, and again."""
    script = ByPrompt([(without_tools, [say("SUMMARY: nothing was done.")])])
    ran = await run_agent(OpenCode(compact_at=14_000), script, tmp_path, context_length=15_000)
    assert ran.rollout.status == "truncated", ran.why()
    assert ran.agent is not None and not ran.agent.timed_out
    assert len(ran.posts) < 16
    assert ran.wall_s < 120.0
    assert_exact(ran)


ENDINGS = {
    "500 once": Ending(posts=3),
    "500 later": Ending(posts=3),
    "500 always": Ending(status="timed_out", reward=None, failure="no_calls", agent_s=8.0),
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
"""Six tries in 70 s cannot be switched off; what the gateway itself answers is not tried again."""


@pytest.mark.parametrize("column", ENDINGS)
async def test_what_goes_wrong(column: str, tmp_path: Path) -> None:
    await endure(PLAYER, column, ENDINGS[column], tmp_path)
