"""New weights for a real server: exact afterwards, harmless to what is in flight, and bounded in time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from longrein.engines.vllm.client import VllmEngine
from longrein.engines.vllm.control import ControlTimeouts, ServerControl
from longrein.engines.vllm.updates import WeightUpdates
from longrein.errors import EngineError
from longrein.train.vllm.folder import FolderWeights, WeightFolder
from longrein.train.vllm.tied import tied_names
from longrein.train.weights import named_weights
from tests.engines.vllm import rig
from tests.engines.vllm.closed_ports import dead_url
from tests.engines.vllm.versions import VERSIONS

pytestmark = pytest.mark.vllm
PROMPT = [10, 20, 30, 40]
UPDATE_S = 120.0


class Trained:
    """A model that changes, and the receiver that its weights go to."""

    def __init__(self, served: Any, folder: Path, **options: Any) -> None:
        self.model = rig.load(served.model)
        self.updates = updates(served.url, **options)
        self.receiver = FolderWeights(self.updates, folder / "weights", tied_names(self.model))

    def step(self) -> int:
        version = next(VERSIONS)
        rig.shake(self.model, version)
        self.receiver.update(named_weights(self.model), version)
        return version


def updates(*urls: str, pause: Any = "keep", outage_timeout_s: float = 60.0, health_s: float = 60.0) -> WeightUpdates:
    timeouts = ControlTimeouts(health_s=health_s, update_s=UPDATE_S)
    return WeightUpdates([ServerControl(url, timeouts) for url in urls], pause=pause, outage_timeout_s=outage_timeout_s)


@pytest.fixture
def trained(served: Any, tmp_path: Path) -> Iterator[Trained]:
    made = Trained(served, tmp_path)
    yield made
    made.receiver.close()
    assert not (tmp_path / "weights").exists()


@pytest.fixture
async def engine(served: Any) -> Any:
    opened = await rig.spec(served.url, model=served.model).connect()
    yield opened
    await opened.close()


async def test_after_each_update_logprobs_are_the_trainers(engine: VllmEngine, trained: Trained) -> None:
    for seed in range(3):
        version = trained.step()
        completion = await engine.generate(rig.request(PROMPT, seed=seed, max_tokens=40))
        assert rig.gap(trained.model, PROMPT, completion) < 1e-4
        assert (completion.min_policy_version, completion.max_policy_version) == (version, version)


async def test_what_is_in_flight_goes_on_with_the_new_weights(
    engine: VllmEngine, served: Any, trained: Trained
) -> None:
    """Also the keys and values of what it had are computed anew: its last tokens are exactly the new policy's."""
    before = trained.step()
    with rig.slowed(served.url):
        requests = [rig.long_request(PROMPT, name=f"k{n}") for n in range(4)]
        asked = await rig.under_way(served.url, [engine.generate(request) for request in requests])
        after = await asyncio.to_thread(trained.step)
    completions = await asyncio.gather(*asked)
    assert {(done.min_policy_version, done.max_policy_version) for done in completions} == {(before, after)}
    for done in completions:
        theirs = rig.trainers_logprobs(trained.model, PROMPT, done.token_ids)
        assert abs(theirs - done.logprobs)[-20:].max() < 1e-4
        assert abs(theirs - done.logprobs)[:10].max() > 1e-2, "the first tokens are of the old weights"


async def test_waiting_lets_what_is_in_flight_end_with_the_old_weights(
    engine: VllmEngine, served: Any, tmp_path: Path
) -> None:
    trained = Trained(served, tmp_path, pause="wait")
    before = trained.step()
    with rig.slowed(served.url), ServerControl(served.url, ControlTimeouts()) as server:
        (asked,) = await rig.under_way(served.url, [engine.generate(rig.long_request(PROMPT))])
        update = asyncio.create_task(asyncio.to_thread(trained.step))
        await rig.until(lambda: server.get("/is_paused").field("is_paused"))
        assert not asked.done()
    await update
    done = await asked
    assert (done.min_policy_version, done.max_policy_version) == (before, before)
    trained.receiver.close()


async def test_weights_of_another_model_are_refused_before_anything_is_sent(
    engine: VllmEngine, trained: Trained
) -> None:
    version = trained.step()
    weights = dict(named_weights(trained.model))
    norm = weights.pop("model.norm.weight")
    with pytest.raises(EngineError, match=r"missing model\.norm\.weight"):
        trained.receiver.update(weights, next(VERSIONS))
    with pytest.raises(EngineError, match=r"of another shape model\.norm\.weight"):
        trained.receiver.update({**weights, "model.norm.weight": torch.ones(7)}, next(VERSIONS))
    with pytest.raises(EngineError, match=r"older than the servers'"):
        trained.receiver.update({**weights, "model.norm.weight": norm}, version - 1)
    completion = await engine.generate(rig.request(PROMPT))
    assert completion.max_policy_version == version
    assert rig.gap(trained.model, PROMPT, completion) < 1e-4


async def test_a_server_that_cannot_load_them_has_those_before(engine: VllmEngine, trained: Trained) -> None:
    """A failed load leaves vLLM without weights; the first request after it would end its engine."""
    version = trained.step()
    with pytest.raises(EngineError, match=r"1 of 1 vLLM servers did not take the weights.*500"):
        trained.updates.publish(WeightFolder(Path("/nowhere/at/all")), next(VERSIONS))
    completion = await engine.generate(rig.request(PROMPT))
    assert completion.max_policy_version == version
    assert rig.gap(trained.model, PROMPT, completion) < 1e-4


async def test_a_dead_server_among_others_is_named_and_the_others_have_the_weights(
    engine: VllmEngine, served: Any, tmp_path: Path
) -> None:
    model = rig.load(served.model)
    version = next(VERSIONS)
    rig.shake(model, version)
    folder = tmp_path / "weights"
    with dead_url() as dead:
        both = updates(served.url, dead, outage_timeout_s=1.0)
        receiver = FolderWeights(both, folder, tied_names(model))
        started_s = time.monotonic()
        with pytest.raises(EngineError, match=rf"1 of 2 vLLM servers.*{dead}.*Waited 1 s"):
            receiver.update(named_weights(model), version)
        assert time.monotonic() - started_s < UPDATE_S
    completion = await engine.generate(rig.request(PROMPT))
    assert completion.max_policy_version == version
    assert rig.gap(model, PROMPT, completion) < 1e-4
    receiver.close()


async def test_a_wedged_server_ends_an_update_in_bounded_time(
    engine: VllmEngine, served: Any, trained: Trained, tmp_path: Path
) -> None:
    trained.step()
    pid = rig.pid_of(served.url)
    impatient = Trained(served, tmp_path / "impatient")
    impatient.updates.close()
    impatient.updates = updates(served.url, outage_timeout_s=1.0, health_s=1.0)
    impatient.receiver = FolderWeights(impatient.updates, tmp_path / "impatient", tied_names(impatient.model))
    os.kill(pid, signal.SIGSTOP)
    try:
        started_s = time.monotonic()
        with pytest.raises(EngineError, match=rf"no answer from the vLLM server at {served.url}.*Waited 1 s"):
            impatient.step()
        assert time.monotonic() - started_s < UPDATE_S, "it waited for the weights, and not for a sign of life"
    finally:
        os.kill(pid, signal.SIGCONT)
        impatient.receiver.close()
    version = trained.step()
    completion = await engine.generate(rig.request(PROMPT))
    assert completion.max_policy_version == version
    assert rig.gap(trained.model, PROMPT, completion) < 1e-4
