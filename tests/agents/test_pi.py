"""The real Pi against a scripted model, in four dialects: tools, compaction, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longrein.harnesses.pi import Dialect, Pi
from tests.agents.branches import assert_rebuilt
from tests.agents.content import assert_prompt_arrives, reason
from tests.agents.faults import ENGINE_FAILED, FAILED, Ending, Player, endure
from tests.agents.rig import assert_done, assert_one_row, run_agent
from tests.agents.script import ByPrompt, call, calls, say

pytestmark = pytest.mark.agents

WRITE = call("write", {"path": "notes/answer.txt", "content": "long reins\n"})
LONG = call("bash", {"command": "yes longreins | head -c 9000"})
PLAYER = Player(harness=Pi(), write=WRITE, done=say("Done."), long=LONG, tool="bash")


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "gemini"])
async def test_a_task_with_parallel_tool_calls(dialect: Dialect, tmp_path: Path) -> None:
    look = calls(("bash", {"command": "cat notes/answer.txt"}), ("bash", {"command": "ls"}), text="Look.")
    ran = await run_agent(Pi(dialect=dialect), [WRITE, look, say("Done.")], tmp_path)
    assert_done(ran)
    assert_one_row(ran)
    assert len(ran.trace.calls) == 3
    assert {one.dialect for one in ran.trace.calls} == {dialect}
    results = [one for one in ran.trace.calls[2].messages if one["role"] == "tool"]
    assert ["long reins" in json.dumps(results[0]), "notes" in json.dumps(results[1])] == [True, True]


async def test_compaction_at_an_overflow_is_a_branch_that_the_conversation_goes_on_from(tmp_path: Path) -> None:
    long = call("bash", {"command": "yes longreinslongreinslongreinslongreinslongreins | head -c 30000"})
    summary = ("<conversation>", [say("SUMMARY: the file must be written yet.")])
    script = ByPrompt([summary], [long, long, WRITE, say("Done.")])
    ran = await run_agent(Pi(compaction=True), script, tmp_path, context_length=60_000)
    assert_rebuilt(ran, compaction=2)


async def test_an_awkward_prompt_arrives_as_it_is(tmp_path: Path) -> None:
    await assert_prompt_arrives(PLAYER, tmp_path)


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages", "gemini"])
async def test_thoughts_come_back(dialect: Dialect, tmp_path: Path) -> None:
    ran = await reason(Player(harness=Pi(dialect=dialect), write=WRITE, done=say("Done.")), tmp_path)
    assert "First the file." in json.dumps(ran.posts[1].body)


ENDINGS = {
    "500 once": FAILED,
    "500 later": Ending(posts=2),
    "500 always": FAILED,
    "429": FAILED,
    "cut": Ending(posts=2),
    "silence": Ending(status="timed_out"),
    "engine fails once": Ending(posts=2),
    "engine is gone": ENGINE_FAILED,
    "overflow": Ending(status="truncated", context_length=20_000),
    "bad JSON": Ending(reward=0.0, posts=1),
    "endless": Ending(status="truncated", posts=5),
}
"""Pi's own retries are off: it gives up at the first fault, with exit code 0."""


@pytest.mark.parametrize("column", ENDINGS)
async def test_what_goes_wrong(column: str, tmp_path: Path) -> None:
    await endure(PLAYER, column, ENDINGS[column], tmp_path)


@pytest.mark.parametrize("dialect", ["responses", "messages", "gemini"])
@pytest.mark.parametrize("column", ["engine is gone", "overflow", "endless"])
async def test_what_the_gateway_says_at_the_end_is_understood(column: str, dialect: Dialect, tmp_path: Path) -> None:
    player = Player(harness=Pi(dialect=dialect), write=WRITE, done=say("Done."), long=LONG)
    await endure(player, column, ENDINGS[column], tmp_path)
