"""A request outlives outages, each with its whole time, but not servers that die of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from longrein.engines.vllm import client, outage
from longrein.engines.vllm.client import VllmEngine
from longrein.engines.vllm.labels import UNLABELLED
from longrein.engines.vllm.outage import MOST_OUTAGES, Patience
from longrein.errors import EngineError, EngineRequestError, EngineUnreachableError
from tests import tiny
from tests.engines.vllm import rig
from tests.engines.vllm.stand_in import Settings, StandIn
from tests.waiting import until

OUTAGE_S = 1.5
"""By a clock that goes by a second with each completion that is asked for, however long that takes."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandIn]:
    monkeypatch.setattr(client, "RETRY_S", 0.1)
    async with StandIn(Settings(label="4")).listening() as made:
        monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: float(len(made.asked))))
        yield made


@pytest.fixture
async def engine(server: StandIn, model: Path) -> AsyncIterator[VllmEngine]:
    made = await rig.spec(server.url, model=model).connect()
    made._outage_timeout_s = OUTAGE_S
    server.asked.clear()
    yield made
    await made.close()


async def test_the_clock_begins_anew_when_the_server_came_back_in_between(server: StandIn, engine: VllmEngine) -> None:
    """So many losses take longer than one outage may."""
    server.settings.resets = MOST_OUTAGES
    assert (await engine.generate(rig.request([5], max_tokens=3))).token_ids.size == 3
    assert len(server.asked) == MOST_OUTAGES + 1


async def test_a_request_that_ends_every_server_is_given_up(server: StandIn, engine: VllmEngine) -> None:
    server.settings.resets = 1000
    with pytest.raises(EngineError, match=r"That is loss \d+ of one request.*whether it is what ends them"):
        await engine.generate(rig.request([5], max_tokens=3))
    assert len(server.asked) > MOST_OUTAGES


async def test_a_server_without_its_weights_is_not_asked_for_what_nobody_takes(
    server: StandIn, engine: VllmEngine
) -> None:
    assert (await engine.generate(rig.request([5], max_tokens=3))).max_policy_version == 4
    server.asked.clear()
    server.settings.label, server.settings.resets = UNLABELLED, 1
    asked = asyncio.create_task(engine.generate(rig.request([5], max_tokens=3)))
    looked = server.reads["/weight_info"]
    await until(lambda: server.reads["/weight_info"] >= looked + 3)
    assert (len(server.asked), asked.done()) == (1, False)
    server.settings.label = "5"
    assert (await asked).max_policy_version == 5


def test_of_one_outage_no_more_is_waited_for_than_was_said() -> None:
    patience, gone = Patience(0.0), EngineUnreachableError("no answer")
    patience.lost(gone)
    assert patience.is_out
    with pytest.raises(EngineError, match=r"no answer\. Waited 0 s for it"):
        patience.lost(gone)


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ({"temperature": float("nan")}, "temperature=nan is out of range"),
        ({"top_p": float("inf")}, "top_p=inf is out of range"),
        ({"seed": 2**70}, "sampling cannot be"),
    ],
)
async def test_what_json_has_no_word_for_is_refused(
    server: StandIn, engine: VllmEngine, sampling: dict[str, float], says: str
) -> None:
    """It would be sent as null, which is the server's own default."""
    with pytest.raises(EngineRequestError, match=says):
        await engine.generate(rig.request([5], **sampling))
    assert server.asked == []
