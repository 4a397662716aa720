"""What must pass through every agent as it is: prompts and thoughts."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agents.faults import Player
from tests.agents.rig import AWKWARD, Ran, assert_done, assert_one_row, run_agent
from tests.agents.script import thinks


async def reason(player: Player, folder: Path) -> Ran:
    """A task whose turns begin with thoughts: they are recorded as such, and one conversation stays one row."""
    turns = [thinks("First the file.\n", player.write), thinks("It is\n\tthere. ", player.done)]
    ran = await run_agent(player.harness, turns, folder)
    assert_done(ran)
    assert_one_row(ran)
    thoughts = [one.reply.get("reasoning_content") for one in ran.trace.calls]
    assert [thought.strip() for thought in thoughts if thought] == ["First the file.", "It is\n\tthere."]
    assert "<think>" not in json.dumps([one.reply for one in ran.trace.calls])
    return ran


async def assert_prompt_arrives(player: Player, folder: Path) -> None:
    """Whatever a prompt holds, it is what the model sees."""
    ran = await run_agent(player.harness, [player.done], folder, task=AWKWARD)
    asked = [one.get("content") for one in ran.trace.calls[0].messages if one["role"] == "user"]
    assert any(AWKWARD.prompt in str(content) for content in asked), ran.why()
