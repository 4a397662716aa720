"""The real Codex against a scripted model: tools, sub-agents, compaction, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from longrein.harnesses.codex import Codex
from longrein.types import Message
from tests.agents.branches import compact
from tests.agents.content import assert_prompt_arrives, reason
from tests.agents.faults import ENGINE_FAILED, FAILED, Ending, Player, endure
from tests.agents.rig import assert_done, assert_exact, assert_one_row, roles, run_agent
from tests.agents.script import ByPrompt, call, calls, say

pytestmark = pytest.mark.agents

WRITE = call("exec_command", {"cmd": "mkdir -p notes && echo long reins > notes/answer.txt"})
LOOK = ("exec_command", {"cmd": "cat notes/answer.txt"})
COUNT = call("exec_command", {"cmd": "seq 1 2000"})
PLAYER = Player(harness=Codex(), write=WRITE, done=say("Done."), long=COUNT, tool="exec_command")


async def test_a_task_with_parallel_tool_calls(tmp_path: Path) -> None:
    ran = await run_agent(Codex(), [WRITE, calls(LOOK, LOOK), say("Done.")], tmp_path)
    assert_done(ran)
    assert_one_row(ran)
    assert len(ran.trace.calls) == 3
    results = [one for one in ran.trace.calls[2].messages if one["role"] == "tool"]
    assert ["long reins" in json.dumps(one) for one in results] == [True, True]


async def test_an_awkward_prompt_arrives_as_it_is(tmp_path: Path) -> None:
    await assert_prompt_arrives(PLAYER, tmp_path)


async def test_reasoning_comes_back_and_is_never_shown_as_text(tmp_path: Path) -> None:
    ran = await reason(PLAYER, tmp_path)
    assert "First the file." in json.dumps(ran.posts[1].body), "it sends back what it was given"


async def test_a_sub_agent_runs_beside_the_agent_on_a_branch_of_its_own(tmp_path: Path) -> None:
    waits = asyncio.Event()

    def wait(prompt: str) -> Message:
        waits.set()
        agent_id = re.findall(r'"agent_id":"([0-9a-f-]{36})"', prompt)[-1]
        return call("multi_agent_v1__wait_agent", {"targets": [agent_id]})

    spawn = call("multi_agent_v1__spawn_agent", {"message": "SUBTASK: write the file"})
    # The sub-agent thinks until the agent has asked to wait for it.
    subagent = ("<|im_start|>user\nSUBTASK", [waits, WRITE, say("Written.")])
    ran = await run_agent(Codex(multi_agent=True), ByPrompt([subagent], [spawn, wait, say("Done.")]), tmp_path)
    assert_done(ran)
    shape = [(one.parent_id, one.reply.get("content") or "") for one in ran.trace.calls]
    assert shape == [(None, ""), (0, ""), (None, ""), (2, "Written."), (1, "Done.")], ran.why()
    assert roles(ran) == ["agent", "agent", "subagent", "subagent", "agent"], ran.why()
    assert "Written." in json.dumps(ran.trace.calls[4].messages), "the agent is told what its sub-agent said"


async def test_compaction_is_a_branch_that_the_conversation_goes_on_from(tmp_path: Path) -> None:
    await compact(PLAYER, Codex(compact_at=45_000), tmp_path)


async def test_a_context_that_overflows_even_its_compaction_is_truncated(tmp_path: Path) -> None:
    script = ByPrompt([("Another language model started", [say("Done.")])], [WRITE, COUNT])
    ran = await run_agent(Codex(compact_at=29_000), script, tmp_path, context_length=30_000)
    assert (ran.rollout.status, ran.score.reward) == ("truncated", 1.0), ran.why()
    assert ran.wall_s < 120.0
    assert_exact(ran)


ENDINGS = {
    "500 once": FAILED,
    "500 later": Ending(posts=2),
    "500 always": FAILED,
    "429": FAILED,
    "cut": Ending(posts=2),
    "silence": Ending(status="timed_out"),
    "engine fails once": Ending(posts=2),
    "engine is gone": ENGINE_FAILED,
    "overflow": Ending(status="truncated", context_length=40_000),
    "bad JSON": Ending(reward=0.0, posts=1),
    "wrong arguments": Ending(posts=3),
    "slow model": Ending(posts=2),
    "endless": Ending(status="truncated", posts=5),
}
"""It tries nothing again: a fault on the way ends it at once, and what it has done is judged."""


@pytest.mark.parametrize("column", ENDINGS)
async def test_what_goes_wrong(column: str, tmp_path: Path) -> None:
    await endure(PLAYER, column, ENDINGS[column], tmp_path)
