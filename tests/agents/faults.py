"""What goes wrong around an agent, column by column as in agents.md, and how a rollout must end each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from longrein.engines.scripted import Delay, Fault
from longrein.errors import EngineError
from longrein.harnesses.base import Harness
from longrein.types import FailureKind, Message, StatusName
from tests.agents.fault_proxy import CutStream, Http429, Http500, Planned, Silence, always, once
from tests.agents.rig import Ran, assert_exact, run_agent, within
from tests.agents.script import Turn, calls, raw

GONE = Fault(error=EngineError("the engine is gone"))
SLOW = Delay(seconds=5.0)
CLOSING_S = 60.0
"""Bound on what a rollout takes beside its agent, on a busy machine."""


class Player(msgspec.Struct, frozen=True, kw_only=True):
    """A harness and the turns by which its agent does the rig's task."""

    harness: Harness
    write: Message
    """Does the task."""
    done: Message
    """Ends the agent's work."""
    long: Message | None = None
    """A turn with a result of 9000 characters."""
    tool: str = ""
    """A tool of the agent, for calls that are none."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong."""

    turns: Callable[[Player], Sequence[Turn]] = lambda player: [player.write, player.done]
    faults: tuple[Planned, ...] = ()
    settings: dict[str, Any] = {}


def broken_call(player: Player) -> Turn:
    return raw(f'<tool_call>{{"name": "{player.tool}", "arguments": {{"command": </tool_call>')


def wrong_calls(player: Player) -> Turn:
    return calls((player.tool, {"no_such_argument": 5}), ("no_such_tool", {}))


COLUMNS = {
    "500 once": Column(faults=(once(Http500()),)),
    "500 later": Column(faults=(once(Http500(), post=2),)),
    "500 always": Column(faults=(always(Http500()),)),
    "429": Column(faults=(once(Http429()),)),
    "cut": Column(faults=(once(CutStream(), post=2),)),
    "silence": Column(faults=(always(Silence(seconds=600.0), first=2),)),
    "engine fails once": Column(turns=lambda player: [GONE, player.write, player.done]),
    "engine is gone": Column(turns=lambda player: [player.write, GONE]),
    "overflow": Column(turns=lambda player: [player.write, *([player.long] * 8 if player.long else [])]),
    "bad JSON": Column(turns=lambda player: [broken_call(player), player.write, player.done]),
    "wrong arguments": Column(turns=lambda player: [wrong_calls(player), player.write, player.done]),
    "slow model": Column(turns=lambda player: [player.write, SLOW, player.done], settings={"keep_alive_s": 0.5}),
    "endless": Column(turns=lambda player: [player.write], settings={"max_calls": 4}),
}


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a rollout ends."""

    status: StatusName = "completed"
    reward: float | None = 1.0
    failure: FailureKind | None = None
    posts: int | None = None
    """Requests that the agent makes, faults included; ``None`` where that is the clock's business."""
    agent_s: float = 60.0
    """The agent's time limit; in a silence, ``rig.SILENCE_S`` of it."""
    context_length: int | None = None


FAILED = Ending(status="failed", reward=None, failure="no_calls")
ENGINE_FAILED = Ending(status="failed", reward=None, failure="engine")


async def endure(player: Player, column: str, ending: Ending, folder: Path) -> Ran:
    """Let it go wrong; the rollout ends in time and as it must, and what was recorded is exact."""
    wrong = COLUMNS[column]
    settings = dict(wrong.settings)
    if ending.context_length is not None:
        settings["context_length"] = ending.context_length
    turns, task = wrong.turns(player), within(ending.agent_s)
    ran = await run_agent(player.harness, turns, folder, task=task, faults=wrong.faults, **settings)
    failure = ran.rollout.failure
    ended = (ran.rollout.status, ran.score.reward, failure.kind if failure else None)
    assert ended == (ending.status, ending.reward, ending.failure), ran.why()
    assert ran.wall_s < ending.agent_s + CLOSING_S, ran.why()
    if ending.posts is not None:
        assert len(ran.posts) == ending.posts, ran.why()
    assert_exact(ran)
    return ran
