"""The engine as a process, through its real client."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from longrein.engines.base import SampledToken
from longrein.engines.local.client import LocalEngine
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.errors import ContextLengthError, EngineError, EngineRequestError
from tests.engines.local.reference import forward_logprobs, ids, random_ids, request
from tests.engines.local.stepped import stepped

VERSIONS = itertools.count(1)


@pytest.fixture(scope="module")
def process(folder_of: Callable[[str], Path]) -> Iterator[LocalEngineProcess]:
    with LocalEngineProcess(LocalEngineConfig(model=str(folder_of("llama")), threads=1, max_batch=8)) as running:
        yield running


@pytest.fixture
async def engine(process: LocalEngineProcess) -> AsyncIterator[LocalEngine]:
    client = await pickle.loads(pickle.dumps(process.spec)).connect()
    yield client
    await client.close()


@pytest.fixture
def trainer(folder_of: Callable[[str], Path]) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder_of("llama"))


async def test_info(engine: LocalEngine, folder_of: Callable[[str], Path]) -> None:
    info = await engine.info()
    assert (info.model, info.context_length, info.vocab_size) == (str(folder_of("llama")), 1024, 264)


async def test_many_concurrent_requests_each_get_their_own_answer(
    engine: LocalEngine, process: LocalEngineProcess, trainer: torch.nn.Module
) -> None:
    process.weights.update(dict(trainer.named_parameters()), next(VERSIONS))
    prompts = [random_ids(i, 5 + 3 * i) for i in range(16)]
    completions = await asyncio.gather(
        *(engine.generate(request(f"c{i}", prompt, max_tokens=5 + i)) for i, prompt in enumerate(prompts))
    )
    for i, (prompt, one) in enumerate(zip(prompts, completions, strict=True)):
        assert one.token_ids.size == 5 + i
        assert one.token_ids.dtype == np.int32
        np.testing.assert_allclose(one.logprobs, forward_logprobs(trainer, prompt, one.token_ids), atol=1e-4)


async def test_a_conversation_keeps_its_kv_until_it_is_forgotten(engine: LocalEngine) -> None:
    prompt = random_ids(70, 30)
    first = await engine.generate(request("kept", prompt))
    second_prompt = np.concatenate([prompt, first.token_ids, random_ids(71, 4)])
    second = await engine.generate(request("kept", second_prompt))
    await engine.forget("kept")
    third = await engine.generate(request("kept", second_prompt))
    assert [one.prefill_tokens for one in (first, second, third)] == [30, 4, second_prompt.size]


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ([], EngineRequestError),
        ([264], EngineRequestError),
        ([-5], EngineRequestError),
        ([1] * 1024, ContextLengthError),
    ],
)
async def test_bad_requests_are_refused_and_the_engine_lives_on(
    engine: LocalEngine, prompt: list[int], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await engine.generate(request("bad", ids(prompt)))
    assert (await engine.generate(request("good", ids([1, 2])))).token_ids.size == 8


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        (ids([1]), {"max_tokens": 5.5}),
        (ids([1]), {"seed": 2**70}),
        (ids([1]), {"stop": ("\ud800",)}),
        (ids([1]), {"temperature": "hot"}),
        (np.array([2**32 + 5]), {}),
        (np.array([1.5]), {}),
        (np.array([[1]]), {}),
    ],
)
async def test_requests_of_other_types_fail_alone(
    engine: LocalEngine, process: LocalEngineProcess, prompt: Any, sampling: dict[str, Any]
) -> None:
    """The engine would hang up on a client that sends such, and all that it has asked for would be lost."""
    async with stepped(process, engine) as steps:
        other = asyncio.create_task(engine.generate(request("other", ids([1, 2]), max_tokens=200)))
        await steps.step()
        with pytest.raises(EngineRequestError):
            await engine.generate(request("bad", prompt, **sampling))
        await steps.step()
    assert (await other).token_ids.size == 200


async def test_a_client_that_sends_garbage_is_cut_off_alone(engine: LocalEngine, process: LocalEngineProcess) -> None:
    reader, writer = await asyncio.open_unix_connection(process.spec.socket_path)
    writer.write(b"\x05\x00\x00\x00GET /")
    assert b"Hello" in await asyncio.wait_for(reader.read(), 120)
    writer.close()
    assert (await engine.generate(request("good", ids([1, 2])))).token_ids.size == 8


async def test_cancelling_frees_the_slot(engine: LocalEngine, process: LocalEngineProcess) -> None:
    heard: list[list[SampledToken]] = [[] for _ in range(8)]
    wanted = [request(f"hog{i}", random_ids(i, 5), max_tokens=1000) for i in range(8)]
    async with stepped(process, engine) as steps:
        hogs = [
            asyncio.create_task(engine.generate_heard(one, tokens.append))
            for one, tokens in zip(wanted, heard, strict=True)
        ]
        await steps.until(lambda: all(heard))
        waiting = asyncio.create_task(engine.generate(request("waiting", ids([1, 2]), max_tokens=2)))
        for _ in range(5):
            await steps.step()
        assert not waiting.done()
        hogs[0].cancel()
        await steps.until(waiting.done)
        # All eight rows were taken by completions of equal length: it got in only because one was freed.
        assert not any(hog.done() for hog in hogs[1:])
        for hog in hogs:
            hog.cancel()
    assert (await waiting).token_ids.size == 2
    assert all(isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*hogs, return_exceptions=True))


async def test_weights_change_under_a_running_request(
    engine: LocalEngine, process: LocalEngineProcess, trainer: torch.nn.Module
) -> None:
    before, after = next(VERSIONS), next(VERSIONS)
    await asyncio.to_thread(process.weights.update, dict(trainer.named_parameters()), before)
    heard: list[list[SampledToken]] = [[] for _ in range(6)]
    async with stepped(process, engine) as steps:
        running = [
            asyncio.create_task(
                engine.generate_heard(request(f"running{i}", random_ids(0, 5), max_tokens=1000), tokens.append)
            )
            for i, tokens in enumerate(heard)
        ]
        asked = asyncio.create_task(engine.generate(request("first", random_ids(1, 5), max_tokens=2)))
        await steps.until(lambda: asked.done() and all(heard))
        with torch.no_grad():
            for tensor in trainer.parameters():
                tensor.add_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)) * 0.05)
        # The state dict names the tied head too.
        await asyncio.to_thread(process.weights.update, trainer.state_dict(), after)
    first = await asked
    fresh = await engine.generate(request("first", random_ids(1, 5), max_tokens=6))
    assert (first.min_policy_version, first.max_policy_version) == (before, before)
    assert (fresh.min_policy_version, fresh.max_policy_version) == (after, after)
    for crossing in await asyncio.gather(*running):
        assert (crossing.min_policy_version, crossing.max_policy_version) == (before, after)
    expected = forward_logprobs(trainer, random_ids(1, 5), fresh.token_ids)
    np.testing.assert_allclose(fresh.logprobs, expected, atol=1e-4)


async def test_weights_of_another_model_are_refused_and_nothing_changes(
    engine: LocalEngine, process: LocalEngineProcess, trainer: torch.nn.Module
) -> None:
    version = next(VERSIONS)
    process.weights.update(dict(trainer.named_parameters()), version)
    right = {name: tensor.detach() + 1 for name, tensor in trainer.named_parameters()}
    some = next(name for name in right if "norm" in name)
    for wrong, message in (
        ({**right, some: torch.zeros(3)}, "shape"),
        ({f"module.{name}": tensor for name, tensor in right.items()}, "unknown module"),
        ({name: tensor for name, tensor in right.items() if name != some}, "missing"),
    ):
        with pytest.raises(EngineError, match=message):
            process.weights.update(wrong, version + 1)
    with pytest.raises(EngineError, match="older"):
        process.weights.update(right, version - 1)
    one = await engine.generate(request("c", random_ids(1, 5)))
    assert one.max_policy_version == version
    np.testing.assert_allclose(one.logprobs, forward_logprobs(trainer, random_ids(1, 5), one.token_ids), atol=1e-4)


async def test_a_closed_client_refuses_and_the_engine_lives_on(process: LocalEngineProcess) -> None:
    client = await process.spec.connect()
    async with stepped(process, client) as steps:
        pending = asyncio.create_task(client.generate(request("c", ids([1]), max_tokens=1000)))
        await steps.step()
        await client.close()
        with pytest.raises(EngineError, match="closed"):
            await pending
    with pytest.raises(EngineError, match="closed"):
        await client.generate(request("c", ids([1])))
    other = await process.spec.connect()
    assert (await other.generate(request("c", ids([1])))).token_ids.size == 8
    await other.close()


def test_the_client_imports_no_torch() -> None:
    code = "import sys, longrein.engines.local.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
