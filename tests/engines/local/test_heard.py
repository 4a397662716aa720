"""Tokens heard one by one, and an engine that stands still."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from longrein.engines.base import SampledToken
from longrein.engines.local.client import LocalEngine
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from tests import tiny
from tests.engines.local.reference import random_ids, request
from tests.engines.local.stepped import stepped
from tests.waiting import until

VERSIONS = itertools.count(1)
CONTEXT = 1 << 18
ENDLESS = CONTEXT - 1000
"""Tokens of a request that is under way until it is cancelled, on any machine."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_model(tmp_path_factory.mktemp("long"), initializer_range=0.2, max_position_embeddings=CONTEXT)


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[LocalEngineProcess]:
    config = LocalEngineConfig(model=str(folder), threads=1, max_batch=8, batch_tokens=2 * CONTEXT)
    with LocalEngineProcess(config) as running:
        yield running


@pytest.fixture
async def engine(process: LocalEngineProcess) -> AsyncIterator[LocalEngine]:
    client = await process.spec.connect()
    yield client
    await client.close()


@pytest.fixture
def trainer(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder)


async def test_what_is_heard_is_the_completion(engine: LocalEngine) -> None:
    heard: list[list[SampledToken]] = [[] for _ in range(4)]
    wanted = [request(f"h{i}", random_ids(i, 5 + 40 * i), max_tokens=6 + i) for i in range(4)]
    completions = await asyncio.gather(
        *(engine.generate_heard(one, heard[i].append) for i, one in enumerate(wanted)),
        engine.generate(request("unheard", random_ids(9, 5))),
    )
    for tokens, one in zip(heard, completions, strict=False):
        assert [token.token_id for token in tokens] == one.token_ids.tolist()
        assert np.float32([token.logprob for token in tokens]).tolist() == one.logprobs.tolist()
        assert {token.policy_version for token in tokens} == {one.max_policy_version}


async def test_each_token_says_which_weights_sampled_it(
    engine: LocalEngine, process: LocalEngineProcess, trainer: torch.nn.Module
) -> None:
    """Also while the engine goes on computing as the weights are written."""
    heard: list[SampledToken] = []
    wanted = request("v", random_ids(1, 8), max_tokens=ENDLESS)
    running = asyncio.create_task(engine.generate_heard(wanted, heard.append))
    await until(lambda: len(heard) >= 5)
    version = next(VERSIONS)
    await asyncio.to_thread(process.weights.update, dict(trainer.named_parameters()), version)
    await until(lambda: heard[-1].policy_version == version)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    versions = [token.policy_version for token in heard]
    assert set(versions) == {version - 1, version}
    assert versions == sorted(versions)


async def test_paused_it_samples_nothing_takes_weights_and_goes_on(
    engine: LocalEngine, process: LocalEngineProcess, trainer: torch.nn.Module
) -> None:
    heard: list[SampledToken] = []
    async with stepped(process, engine) as steps:
        running = asyncio.create_task(
            engine.generate_heard(request("p", random_ids(2, 8), max_tokens=400), heard.append)
        )
        await steps.until(lambda: len(heard) >= 3)
        count = len(heard)
        version = next(VERSIONS)
        await asyncio.to_thread(process.weights.update, dict(trainer.named_parameters()), version)
        late = asyncio.create_task(engine.generate(request("late", random_ids(3, 8))))
        for _ in range(5):
            # It would compute something each time that it looks at what came.
            await steps.heard()
        assert len(heard) == count < 400
        assert not late.done()
    completion, after = await asyncio.gather(running, late)
    assert completion.token_ids.size == 400
    assert (completion.min_policy_version, completion.max_policy_version) == (version - 1, version)
    assert after.min_policy_version == version
    assert [token.policy_version for token in heard] == [version - 1] * count + [version] * (400 - count)


async def test_a_cleared_cache_has_nothing_left(engine: LocalEngine, process: LocalEngineProcess) -> None:
    prompt = random_ids(4, 200)
    counts = []
    for name in ("a", "b"):
        counts.append((await engine.generate(request(name, prompt))).prefill_tokens)
    await asyncio.to_thread(process.clear_cache)
    counts.append((await engine.generate(request("c", prompt))).prefill_tokens)
    assert counts[0] == counts[2] == 200
    assert counts[1] < 200


async def test_a_cancelled_request_is_heard_no_more(engine: LocalEngine) -> None:
    heard: list[SampledToken] = []
    wanted = request("x", random_ids(5, 8), max_tokens=ENDLESS)
    running = asyncio.create_task(engine.generate_heard(wanted, heard.append))
    await until(lambda: heard)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    count = len(heard)
    await engine.generate(request("y", random_ids(6, 8)))
    assert len(heard) == count < ENDLESS
