"""The real aider against a scripted model: edits in text, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from longrein.errors import ConfigError
from longrein.harnesses.aider import Aider
from longrein.types import Message
from tests.agents.content import assert_prompt_arrives
from tests.agents.faults import ENGINE_FAILED, Ending, Player, endure
from tests.agents.rig import TASK, assert_done, assert_one_row, run_agent
from tests.agents.script import say


def missing() -> str:
    try:
        Aider().check()
    except ConfigError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.agents, pytest.mark.skipif(bool(missing()), reason=missing())]


def edit(old: str, new: str) -> Message:
    return say(f"notes/answer.txt\n```\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n```\n")


PLAYER = Player(harness=Aider(), write=edit("", "long reins\n"), done=say("Done."), tool="edit")


async def test_it_makes_a_file(tmp_path: Path) -> None:
    ran = await run_agent(Aider(), [edit("", "long reins\n")], tmp_path)
    assert_done(ran)
    assert_one_row(ran)
    assert len(ran.trace.calls) == 1


async def test_it_edits_a_file_of_the_task_after_a_mistake(tmp_path: Path) -> None:
    task = msgspec.structs.replace(TASK, files={"notes/answer.txt": b"short reins\n"})
    turns = [edit("no such line\n", "long reins\n"), edit("short reins\n", "long reins\n")]
    ran = await run_agent(Aider(), turns, tmp_path, task=task)
    assert_done(ran)
    first, second = ran.trace.calls
    assert "notes/answer.txt\\n```\\nshort reins" in json.dumps(first.messages), "the file is open from the start"
    assert "failed to match" in json.dumps(second.messages)
    # Its reminder moved from the first message to the last: what the model sees is another history.
    assert (second.parent_id, second.branch_reason) == (None, "history_changed"), ran.why()


async def test_an_awkward_prompt_arrives_as_it_is(tmp_path: Path) -> None:
    await assert_prompt_arrives(PLAYER, tmp_path)


ENDINGS = {
    "500 once": Ending(posts=2),
    "500 always": Ending(status="timed_out", reward=None, failure="no_calls", agent_s=12.0),
    "429": Ending(posts=2),
    "engine fails once": Ending(posts=1),
    "overflow": Ending(status="truncated", reward=0.0, context_length=1_000),
}
"""It tries for a minute, and that cannot be switched off."""


@pytest.mark.parametrize("column", ENDINGS)
async def test_what_goes_wrong(column: str, tmp_path: Path) -> None:
    await endure(PLAYER, column, ENDINGS[column], tmp_path)


TWO_CALLS = msgspec.structs.replace(PLAYER, write=edit("no such line\n", ""), done=edit("", "long reins\n"))
"""One message is one request, but for an edit that fails."""
SECOND_CALL = {
    "cut": Ending(posts=3),
    "silence": Ending(status="timed_out", reward=0.0),
}


@pytest.mark.parametrize("column", SECOND_CALL)
async def test_what_goes_wrong_with_a_second_call(column: str, tmp_path: Path) -> None:
    await endure(TWO_CALLS, column, SECOND_CALL[column], tmp_path)


async def test_an_engine_that_fails_for_good_is_no_zero(tmp_path: Path) -> None:
    await endure(TWO_CALLS, "engine is gone", ENGINE_FAILED, tmp_path)
