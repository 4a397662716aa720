"""Long completions, and a server that is stopped in the middle of one, however fast its engine is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from tests.gateway.rig import PATIENCE_S, until
from tests.serve.rig import Rig

LONG = {"max_tokens": 450, "logprobs": 0, "ignore_eos": True}


class Stream:
    """A long completion. On a fast machine it may be over before anything else is done."""

    def __init__(self, rig: Rig) -> None:
        self.token_ids: list[int] = []
        self.last: Any = None
        self._rig = rig
        self._heard_before = rig.tokens_heard
        self._task: asyncio.Task[None] | None = None

    @property
    def sampled(self) -> int:
        """Tokens of the only stream that there is, as the server heard them."""
        return self._rig.tokens_heard - self._heard_before

    async def begin(self, tokens: int = 3) -> Stream:
        self._task = asyncio.create_task(self._read())
        task = self._task
        await until(lambda: len(self.token_ids) >= tokens or task.done())
        return self

    async def end(self) -> Any:
        assert self._task is not None
        await asyncio.wait_for(self._task, PATIENCE_S)
        return self.last

    async def _read(self) -> None:
        body = {"token_ids": [5, 6, 7], "sampling_params": LONG, "stream": True}
        async with self._rig.http.post(self._rig.url + "/inference/v1/generate", json=body) as answer:
            assert answer.status == 200
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    self.last = event["choices"][0] if "choices" in event else event
                    self.token_ids += self.last.get("token_ids", ())


async def halted(rig: Rig) -> Stream:
    """A stream in whose middle the engine stands still, until a resume or :meth:`Rig.go_on`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            stream = await Stream(rig).begin()
            await rig.halt()
            if rig.under_way:
                return stream
            await rig.go_on()
            await stream.end()


async def frozen(rig: Rig) -> Stream:
    """A stream in whose middle a pause has frozen the engine."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            stream = await Stream(rig).begin()
            await pause(rig, "keep")
            await rig.hear_all()
            if rig.under_way:
                return stream
            await resume(rig)
            await stream.end()


async def asked_meanwhile(rig: Rig, change: Coroutine[Any, Any, None]) -> list[Any]:
    """The ends of streams, one after the other, until something was changed."""
    changing = asyncio.create_task(change)
    ends: list[Any] = []
    while not changing.done():
        ends.append(await (await Stream(rig).begin()).end())
    await changing
    return ends


async def pause(rig: Rig, mode: str) -> None:
    assert await rig.post(f"/pause?mode={mode}") == (200, {"status": "paused"})
    assert await rig.get("/is_paused") == (200, {"is_paused": True})


async def resume(rig: Rig) -> None:
    assert await rig.post("/resume") == (200, {"status": "resumed"})
    assert await rig.get("/is_paused") == (200, {"is_paused": False})
