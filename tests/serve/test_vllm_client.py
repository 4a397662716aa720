"""The client that is written for vLLM, against our server: the two speak one protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from longrein.engines.base import EngineRequest
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.engines.vllm.client import VllmEngine
from longrein.engines.vllm.spec import VllmEngineSpec
from longrein.errors import ContextLengthError, EngineError, EngineRequestError
from longrein.train.vllm.choose import SyncSettings, vllm_receiver
from longrein.train.vllm.tied import tied_names
from longrein.types import Completion, Sampling
from tests.engines.local.reference import forward_logprobs, random_ids
from tests.gateway.rig import PATIENCE_S
from tests.serve.rig import CONTEXT, Rig, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def process(first: Path) -> Iterator[LocalEngineProcess]:
    with LocalEngineProcess(LocalEngineConfig(model=str(first), context_length=CONTEXT)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(process: LocalEngineProcess, first: Path) -> AsyncIterator[Rig]:
    async with serving(process, first) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(rig: Rig, first: Path) -> AsyncIterator[VllmEngine]:
    client = await VllmEngineSpec(urls=(rig.url,), model=str(first), context_length=CONTEXT).connect()
    yield client
    await client.close()


def request(number: int, size: int = 30, **sampling: object) -> EngineRequest:
    options = {"max_tokens": 12, "seed": 3, **sampling}
    return EngineRequest(
        request_id=f"r{number}", conversation_id="c", prompt_ids=random_ids(number, size), sampling=Sampling(**options)
    )


def same(one: Completion, other: Completion) -> bool:
    return one.token_ids.tolist() == other.token_ids.tolist() and one.logprobs.tolist() == other.logprobs.tolist()


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.6}, {"temperature": 0.0}, {"top_p": 0.5}])
async def test_it_samples_what_the_engine_does(rig: Rig, engine: VllmEngine, sampling: dict[str, float]) -> None:
    wanted = request(1, **sampling)
    assert same(await engine.generate(wanted), await rig.engine.generate(wanted))


async def test_refusals_are_told_apart(engine: VllmEngine) -> None:
    with pytest.raises(EngineRequestError):
        await engine.generate(request(1, seed=-3))
    with pytest.raises(ContextLengthError):
        await engine.generate(request(1, size=CONTEXT))


async def test_a_context_that_is_too_short_is_refused(rig: Rig, first: Path) -> None:
    with pytest.raises(EngineError, match="a context of 512 tokens, the run needs 1024"):
        await VllmEngineSpec(urls=(rig.url,), model=str(first), context_length=1024).connect()


async def test_weights_come_by_the_trainers_way(rig: Rig, engine: VllmEngine, second: Path, tmp_path: Path) -> None:
    module: torch.nn.Module = AutoModelForCausalLM.from_pretrained(second)
    settings = SyncSettings(urls=(rig.url,), weights_folder=str(tmp_path / "weights"))
    receiver = await asyncio.to_thread(vllm_receiver, settings, tied_names(module))
    crossed: list[Completion] = []
    version = 0
    async with asyncio.timeout(PATIENCE_S):
        # The weights may come between two requests.
        while not crossed:
            version += 1
            update = asyncio.create_task(asyncio.to_thread(receiver.update, dict(module.named_parameters()), version))
            while not update.done():
                one = await engine.generate(request(5, max_tokens=450))
                assert one.token_ids.size == 450
                crossed += [one] if one.min_policy_version < one.max_policy_version else []
            await update
    assert [(one.min_policy_version, one.max_policy_version) for one in crossed] == [(version - 1, version)]
    after = await engine.generate(request(6))
    assert (after.min_policy_version, after.max_policy_version) == (version, version)
    np.testing.assert_allclose(
        after.logprobs, forward_logprobs(module, request(6).prompt_ids, after.token_ids), atol=1e-4
    )
    await asyncio.to_thread(receiver.close)


async def test_adapters_alone_are_refused_at_the_start(rig: Rig, second: Path, tmp_path: Path) -> None:
    settings = SyncSettings(urls=(rig.url,), weight_sync="lora", weights_folder=str(tmp_path / "weights"))
    with pytest.raises(EngineError, match="serves no adapters"):
        await asyncio.to_thread(vllm_receiver, settings, {})
