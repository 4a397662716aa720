"""An agent that asks for ever what it cannot have."""

from __future__ import annotations

import asyncio
import json

import pytest

from longrein.gateway.ending import FINAL_ANSWERS, REFUSALS
from tests.gateway.held import held
from tests.gateway.rig import PATIENCE_S, Rig, rig, say, until
from tests.gateway.tongues import TONGUES, Tongue, in_every_tongue


def over(r: Rig) -> bool:
    return r.gateway._keys.session("s").ending._over.is_set()


async def refused(tongue: Tongue, r: Rig, times: int) -> None:
    for _ in range(times):
        assert (await tongue.post(r.endpoint.base_url + tongue.path, b"{}")).status == 400


@in_every_tongue
async def test_refusals_without_end_end_the_session(tongue: Tongue) -> None:
    async with rig([say("one"), say("two")]) as r:
        await refused(tongue, r, REFUSALS - 1)
        assert (await tongue.ask(r, "go")).status == 200
        await refused(tongue, r, REFUSALS - 1)
        assert not over(r), "it was answered between"
        await refused(tongue, r, 1)
        await asyncio.wait_for(r.gateway.until_over("s"), PATIENCE_S)
        record = await r.gateway.close_session("s")
        assert record.truncated and record.failure is None


async def test_an_agent_that_never_asked_anything_sensible_is_not_truncated() -> None:
    """But without one call, which is a failure of the agent's launch."""
    async with rig([]) as r:
        await refused(TONGUES["chat"], r, REFUSALS)
        assert over(r) and not (await r.gateway.close_session("s")).truncated


@in_every_tongue
async def test_refusals_after_the_time_is_up_end_the_session(tongue: Tongue) -> None:
    async with rig([], max_session_s=0.0) as r:
        await refused(tongue, r, FINAL_ANSWERS)
        assert over(r) and (await r.gateway.close_session("s")).truncated


@pytest.mark.parametrize("path", ["/v1/telemetry", "/v1/models"])
async def test_what_is_not_asked_of_the_model_ends_nothing(path: str) -> None:
    async with rig([]) as r:
        for _ in range(2 * REFUSALS):
            await TONGUES["chat"].post(r.endpoint.base_url + path, b"{}")
        assert not over(r)


async def test_refusals_beside_a_slow_answer_end_nothing() -> None:
    async with held() as (r, script):
        asking = asyncio.create_task(TONGUES["chat"].ask(r, "go"))
        await until(lambda: r.engine.requests)
        await refused(TONGUES["chat"], r, 2 * REFUSALS)
        assert not over(r)
        script.go.set()
        assert json.loads((await asking).text)["choices"][0]["message"]["content"] == "answer 1"
