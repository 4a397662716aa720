"""A session factory as a user may write one: no sandbox, one real call through the gateway, a verdict by the prompt."""

from __future__ import annotations

import asyncio

import aiohttp

from longrein.errors import TaskError
from longrein.sessions.base import AgentExit
from longrein.types import Endpoint, Score, Task


class HandFactory:
    """The prompt is the reward: a number, ``none``, ``hang`` or ``raise``."""

    open_sessions = 0

    async def create(self, *, task: Task, endpoint: Endpoint, session_id: str) -> HandSession:
        HandFactory.open_sessions += 1
        return HandSession(task, endpoint)


class HandSession:
    def __init__(self, task: Task, endpoint: Endpoint) -> None:
        self._task = task
        self._endpoint = endpoint

    async def run(self) -> AgentExit:
        body = {"model": "policy", "messages": [{"role": "user", "content": self._task.prompt}]}
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{self._endpoint.base_url}/v1/chat/completions", json=body) as answer,
        ):
            await answer.read()
        return AgentExit(exit_code=0, timed_out=False, output_tail="", duration_s=0.0)

    async def verify(self) -> Score:
        if self._task.prompt == "hang":
            await asyncio.sleep(3600)
        if self._task.prompt == "raise":
            raise TaskError("this task cannot be judged")
        if self._task.prompt == "none":
            return Score(reward=None, reason="a flaky machine")
        return Score(reward=float(self._task.prompt))

    async def close(self) -> None:
        HandFactory.open_sessions -= 1
