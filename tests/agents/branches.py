"""What agents do beside their one conversation: sub-agents and compaction, and what a trace must show of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longrein.engines.scripted import Delay
from longrein.harnesses.base import Harness
from longrein.types import Message
from tests.agents.faults import Player
from tests.agents.rig import Ran, assert_done, assert_one_row, roles, run_agent
from tests.agents.script import ByPrompt, calls, say

SUBTASK = "<|im_start|>user\nSUBTASK"


def without_tools(prompt: str) -> bool:
    """For summaries that are asked for without tools."""
    return "\nTools:\n" not in prompt


async def delegate(player: Player, start: Message, folder: Path) -> None:
    """A call starts a sub-agent, which does the task; its prompt begins with ``SUBTASK``."""
    script = ByPrompt([(SUBTASK, [player.write, say("Written.")])], [start, player.done])
    ran = await run_agent(player.harness, script, folder)
    assert_done(ran)
    shape = [(one.parent_id, one.reply.get("content") or "") for one in ran.trace.calls]
    assert shape == [(None, ""), (None, ""), (1, "Written."), (0, "Done.")], ran.why()
    assert roles(ran) == ["agent", "subagent", "subagent", "agent"], ran.why()
    assert "Written." in json.dumps(ran.trace.calls[3].messages), "the agent is told what its sub-agent said"


async def delegate_at_once(
    player: Player, start: Callable[[str], tuple[str, dict[str, Any]]], look: tuple[str, dict[str, Any]], folder: Path
) -> None:
    """Two sub-agents with prompts ``SUBTASK slow`` and ``SUBTASK quick``, started by one turn, stay apart."""
    slow = (f"{SUBTASK} slow", [Delay(seconds=1.0), calls(look), say("Looked.")])
    quick = (f"{SUBTASK} quick", [player.write, say("Written.")])
    script = ByPrompt([slow, quick], [calls(start("slow"), start("quick")), player.done])
    ran = await run_agent(player.harness, script, folder)
    assert_done(ran)
    assert sorted(roles(ran)) == ["agent"] * 2 + ["subagent"] * 4, ran.why()
    last = [path[-1].reply["content"] for path in ran.trace.paths()]
    assert sorted(last) == ["Done.", "Looked.", "Written."], ran.why()
    assert [len(path) for path in ran.trace.paths()] == [2, 2, 2], ran.why()


def assert_one_sub_agent(ran: Ran) -> None:
    """The task is done, and beside the agent's conversation there is one sub-agent's, of two calls."""
    assert_done(ran)
    assert_one_row(ran)
    branches = [path for path in ran.trace.paths() if path[0].role == "subagent"]
    assert [[one.role for one in path] for path in branches] == [["subagent", "subagent"]], ran.why()
    assert all(one.delivered for one in branches[0])


async def compact(player: Player, harness: Harness, folder: Path) -> None:
    """It compacts after ``player.long`` by asking without tools, and goes on from the summary."""
    summary = (without_tools, [say("SUMMARY: the file is written.")])
    script = ByPrompt([summary, ("SUMMARY", [player.done])], [player.write, player.long or player.write])
    ran = await run_agent(harness, script, folder)
    assert_done(ran)
    roots = [one for one in ran.trace.calls if one.parent_id is None]
    assert len(roots) == 3, ran.why()
    first, compaction, rebuilt = roots
    assert first.tools and not compaction.tools and rebuilt.tools
    before = ["agent"] * compaction.call_id
    assert roles(ran) == [*before, "compaction", "agent"], ran.why()
    assert "SUMMARY" in json.dumps(rebuilt.messages)


def assert_rebuilt(ran: Ran, compaction: int) -> None:
    """The task is done, and the call after that ``compaction`` is a root that starts from its summary."""
    assert ran.score.reward == 1.0, ran.why()
    assert roles(ran)[: compaction + 2] == [*["agent"] * compaction, "compaction", "agent"], ran.why()
    rebuilt = ran.trace.calls[compaction + 1]
    assert (rebuilt.parent_id, rebuilt.branch_reason) == (None, "compaction")
    assert "SUMMARY" in json.dumps(rebuilt.messages)
