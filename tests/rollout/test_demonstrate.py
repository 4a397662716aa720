"""Demonstrations: a flaky one is left out, a wrong oracle is an error, and one bug ends all of them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.errors import TaskError
from longrein.gateway.settings import GatewaySettings
from longrein.rollout.demonstrate import OracleVoice, demonstrate
from longrein.rollout.evaluate import evaluate
from longrein.rollout.runtime import RolloutRuntime, open_gateway
from longrein.types import Rollout, Task
from tests import tiny
from tests.rollout.by_hand import HandFactory


def task(reward: str) -> Task:
    return Task(task_id=f"task-{reward}", prompt=reward, oracle=("true",))


@asynccontextmanager
async def runtime(folder: Path) -> AsyncIterator[tuple[RolloutRuntime, ScriptedEngine]]:
    tiny.tokenizer().save_pretrained(folder)
    renderer = ChatRenderer.load(str(folder))
    engine = ScriptedEngine(TurnList(renderer), vocab_size=renderer.vocab_size, context_length=2048)
    settings = GatewaySettings(max_tokens=256, context_length=2048)
    async with open_gateway(engine, renderer, settings, HandFactory()) as opened:
        yield opened, engine


async def collect(folder: Path, rewards: list[str]) -> list[Rollout]:
    async with runtime(folder) as (opened, engine):
        return await demonstrate(opened, engine, [task(reward) for reward in rewards], OracleVoice(), max_inflight=4)


async def test_what_cannot_be_scored_is_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="longrein"):
        kept = await collect(tmp_path, ["1", "none", "1"])
    assert [rollout.task_id for rollout in kept] == ["task-1", "task-1"]
    assert "1 of 3 oracle rollouts could not be scored and are left out; the first is task-none" in caplog.text


async def test_more_than_half_lost_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="2 of 3 oracle rollouts could not be scored; the first is task-none: a flaky"):
        await collect(tmp_path, ["none", "none", "1"])


async def test_a_wrong_oracle_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"1 of 3 oracle rollouts did not get reward 1; the first is task-0.5"):
        await collect(tmp_path, ["1", "none", "0.5"])


async def test_a_bug_in_one_is_raised_itself_and_ends_the_others(tmp_path: Path) -> None:
    HandFactory.open_sessions = 0
    with pytest.raises(TaskError, match="this task cannot be judged"):
        await collect(tmp_path, ["hang", "raise"])
    async with runtime(tmp_path) as (opened, engine):
        engine.tell("eval-00001-0", [{"role": "assistant", "content": "ok"}])
        engine.tell("eval-00000-0", [{"role": "assistant", "content": "ok"}])
        with pytest.raises(TaskError, match="this task cannot be judged"):
            await evaluate(opened, [task("hang"), task("raise")], samples=1, pass_at=[1], max_inflight=2)
    assert HandFactory.open_sessions == 0
