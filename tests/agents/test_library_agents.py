"""The example scripts with openai-agents and smolagents, run as they stand, against a scripted model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longrein.harnesses.command import Command
from longrein.harnesses.installed import installed
from longrein.types import Message
from tests.agents.content import assert_prompt_arrives, reason
from tests.agents.faults import ENGINE_FAILED, FAILED, Ending, Player, endure
from tests.agents.rig import assert_done, assert_one_row, run_agent
from tests.agents.script import call, calls, say

pytestmark = pytest.mark.agents

EXAMPLES = Path(__file__).parents[2] / "examples"
WRITE_COMMAND = "mkdir notes; echo long reins > notes/answer.txt"
WRITE = call("bash", {"command": WRITE_COMMAND})
LOOK = calls(("bash", {"command": "cat notes/answer.txt"}), ("bash", {"command": "ls"}))
LONG = call("bash", {"command": "yes longreins | head -c 9000"})


def example(name: str, env: dict[str, str]) -> Command:
    python = str(installed("library-agents/bin/python"))
    return Command.python_script(str(EXAMPLES / name / "agent.py"), env=env, python=python)


def openai_agents(api: str) -> Command:
    return example("openai_agents", {"OPENAI_API": api})


def smolagents(agent: str) -> Command:
    return example("smolagents", {"AGENT": agent})


def in_code(code: str) -> Message:
    return say(f"Thought: go on.\n<code>\n{code}\n</code>")


@pytest.mark.parametrize(("api", "dialect"), [("responses", "responses"), ("chat_completions", "chat")])
async def test_openai_agents(api: str, dialect: str, tmp_path: Path) -> None:
    ran = await run_agent(openai_agents(api), [WRITE, LOOK, say("Done.")], tmp_path)
    assert_done(ran)
    assert_one_row(ran)
    assert {one.dialect for one in ran.trace.calls} == {dialect}
    assert ran.output.strip() == "Done."
    results = [json.dumps(one) for one in ran.trace.calls[2].messages if one["role"] == "tool"]
    assert ["long reins" in results[0], "notes" in results[1]] == [True, True]


SMOL_TURNS = {
    "tool": [WRITE, LOOK, call("final_answer", {"answer": "Done."})],
    "code": [
        in_code(f"print(bash({WRITE_COMMAND!r}))"),
        in_code("print(bash('cat notes/answer.txt'))"),
        in_code("final_answer('Done.')"),
    ],
}


@pytest.mark.parametrize("agent", ["tool", "code"])
async def test_smolagents_has_a_row_a_call_since_it_rewrites_the_models_turns(agent: str, tmp_path: Path) -> None:
    ran = await run_agent(smolagents(agent), SMOL_TURNS[agent], tmp_path)
    assert_done(ran)
    assert [(one.parent_id, one.branch_reason) for one in ran.trace.calls] == [
        (None, "first"),
        (None, "history_changed"),
        (None, "history_changed"),
    ], ran.why()
    assert "long reins" in json.dumps(ran.trace.calls[2].messages)


PLAYERS = {
    "responses": Player(harness=openai_agents("responses"), write=WRITE, done=say("Done."), long=LONG, tool="bash"),
    "chat": Player(harness=openai_agents("chat_completions"), write=WRITE, done=say("Done."), long=LONG, tool="bash"),
    "smolagents": Player(
        harness=smolagents("tool"), write=WRITE, done=call("final_answer", {"answer": "Done."}), long=LONG, tool="bash"
    ),
}


@pytest.mark.parametrize("player", PLAYERS)
async def test_an_awkward_prompt_arrives_as_it_is(player: str, tmp_path: Path) -> None:
    await assert_prompt_arrives(PLAYERS[player], tmp_path)


async def test_thoughts_come_back_in_responses(tmp_path: Path) -> None:
    ran = await reason(PLAYERS["responses"], tmp_path)
    assert "First the file." in json.dumps(ran.posts[1].body)


async def test_thoughts_are_dropped_in_chat_completions_and_one_conversation_is_one_row(tmp_path: Path) -> None:
    ran = await reason(PLAYERS["chat"], tmp_path)
    assert "First the file." not in json.dumps(ran.posts[1].body)


ENDINGS = {
    "500 once": FAILED,
    "500 always": FAILED,
    "500 later": Ending(posts=2),
    "cut": Ending(posts=2),
    "429": FAILED,
    "silence": Ending(status="timed_out"),
    "engine fails once": Ending(posts=2),
    "engine is gone": ENGINE_FAILED,
    "overflow": Ending(status="truncated", context_length=20_000),
    "endless": Ending(status="truncated"),
}
"""The examples switch their libraries' retries off."""


@pytest.mark.parametrize("column", ENDINGS)
@pytest.mark.parametrize("player", PLAYERS)
async def test_what_goes_wrong(player: str, column: str, tmp_path: Path) -> None:
    await endure(PLAYERS[player], column, ENDINGS[column], tmp_path)


async def test_a_call_that_is_no_json_is_the_last_word_of_openai_agents(tmp_path: Path) -> None:
    await endure(PLAYERS["chat"], "bad JSON", Ending(reward=0.0, posts=1), tmp_path)


async def test_smolagents_asks_again_after_a_call_that_is_no_json(tmp_path: Path) -> None:
    await endure(PLAYERS["smolagents"], "bad JSON", Ending(posts=3), tmp_path)
