"""Memory that runs out: that request or that update fails with a clear error, and the engine lives on."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from longrein.engines.base import AdapterSpec, AdapterTarget
from longrein.engines.local import scheduler, wire
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.forward import DecodeRows, Forward, Piece
from longrein.engines.local.kv import KvLayout, LayerShape
from longrein.engines.local.model import LocalModel, load_model
from longrein.engines.local.process import LocalEngineProcess
from longrein.engines.local.sample import Sampled, sample
from longrein.engines.local.shortage import ShortageError, shortage
from longrein.errors import EngineError
from longrein.train.folder_weights import folder_weights
from tests import tiny
from tests.engines.local.reference import Driver, completion, random_ids, request

CONTEXT = 1 << 18
MODULE = "model.layers.0.self_attn.q_proj"


@contextlib.contextmanager
def no_more_memory(pid: int) -> Iterator[None]:
    """What the process has now is all that it gets, but for a little."""
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (psutil.Process(pid).memory_info().vms + (1 << 23), before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


async def test_a_request_that_takes_more_memory_than_there_is_fails_alone(tmp_path: Path) -> None:
    folder = tiny.save_model(tmp_path / "model", max_position_embeddings=CONTEXT)
    with LocalEngineProcess(LocalEngineConfig(model=str(folder), threads=1)) as process:
        engine = await process.spec.connect()
        first = await engine.generate(request("small", random_ids(0, 9)))
        with no_more_memory(process.pid):
            with pytest.raises(EngineError, match=r"out of memory .* with 200000 tokens of prompt beside 0 other"):
                await engine.generate(request("large", random_ids(0, 200_000)))
            again = await engine.generate(request("small again", random_ids(0, 9)))
        assert again.token_ids.tolist() == first.token_ids.tolist()
        await engine.close()


async def test_an_update_that_takes_more_memory_than_there_is_leaves_the_weights(
    folder_of: Callable[[str], Path],
) -> None:
    rank = 1 << 16
    spec = AdapterSpec(targets={MODULE: AdapterTarget(rank=rank, scaling=1.0)})
    folder = folder_of("llama")
    out, into = folder_weights(folder)[f"{MODULE}.weight"].shape
    large = {f"{MODULE}.lora_A.weight": torch.ones(rank, into), f"{MODULE}.lora_B.weight": torch.ones(out, rank)}
    with LocalEngineProcess(LocalEngineConfig(model=str(folder), threads=1)) as process:
        engine = await process.spec.connect()
        before = await engine.generate(request("before", random_ids(0, 9)))
        with no_more_memory(process.pid), pytest.raises(EngineError, match=r"out of memory.*goes on with those from"):
            process.weights.update_adapter(large, spec, 1)
        after = await engine.generate(request("after", random_ids(0, 9)))
        assert (after.token_ids.tolist(), after.max_policy_version) == (before.token_ids.tolist(), 0)
        process.weights.update_adapter(large, spec, 1)
        assert (await engine.generate(request("adapted", random_ids(0, 9)))).min_policy_version == 1
        await engine.close()


class Short:
    """A pass for which there is no memory so many times."""

    name = "short"

    def __init__(self, inner: Forward) -> None:
        self.inner = inner
        self.fails = 0
        self.refreshes_fail = 0

    def run(self, decodes: list[DecodeRows], pieces: list[Piece]) -> torch.Tensor:
        logits = self.inner.run(decodes, pieces)
        if self.fails:
            # At its end, so that what it has done must do no harm.
            self.fails -= 1
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory"
            )
        return logits

    def refresh(self) -> None:
        if self.refreshes_fail:
            self.refreshes_fail -= 1
            raise MemoryError
        self.inner.refresh()


@pytest.fixture
def short(folder_of: Callable[[str], Path]) -> LocalModel:
    model = load_model(LocalEngineConfig(model=str(folder_of("llama")), threads=1))
    model.forward = Short(model.forward)
    return model


def forward_of(model: LocalModel) -> Short:
    assert isinstance(model.forward, Short)
    return model.forward


@pytest.mark.parametrize("passes_before", [0, 1, 2, 4])
def test_a_pass_that_is_made_again_samples_the_same(short: LocalModel, passes_before: int) -> None:
    """With what the cache held there is enough: nobody fails."""
    driver = Driver(short)
    wanted = [request(f"c{number}", random_ids(number, 30 + 50 * number), max_tokens=12) for number in range(3)]
    expected = [one.token_ids.tolist() for one in driver.run(*wanted)]
    tickets = [driver.submit(one) for one in wanted]
    for _ in range(passes_before):
        driver.scheduler.step()
    forward_of(short).fails = 1
    replies = driver.finish()
    assert [completion(replies[ticket]).token_ids.tolist() for ticket in tickets] == expected


def test_a_token_that_is_drawn_again_is_drawn_with_the_same_number(
    short: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(short)
    wanted = [request(f"c{number}", random_ids(number, 30), max_tokens=12) for number in range(3)]
    expected = [one.token_ids.tolist() for one in driver.run(*wanted)]
    fails = iter([False, True, False, True, True])

    def sampled(*given: Any) -> Sampled:
        if next(fails, False):
            raise MemoryError
        return sample(*given)

    monkeypatch.setattr(scheduler, "sample", sampled)
    # Shortages after the first pass find the cache empty, and would be the end of a request.
    monkeypatch.setattr(driver.scheduler, "_next_victim", lambda: None)
    assert [one.token_ids.tolist() for one in driver.run(*wanted)] == expected
    assert next(fails, "none left") == "none left"


def test_the_largest_request_makes_room_for_the_others(short: LocalModel) -> None:
    driver = Driver(short, cache_tokens=0)
    sizes = (10, 300, 40)
    tickets = [
        driver.submit(request(f"c{size}", random_ids(size, size), max_tokens=400 if size == 10 else 20))
        for size in sizes
    ]
    while len(driver.scheduler._decoding.rows) < len(sizes):
        driver.scheduler.step()
    forward_of(short).fails = 1
    replies = driver.finish()
    failed = replies[tickets[1]]
    assert isinstance(failed, wire.Failed)
    assert "with 300 tokens of prompt beside 2 other requests; lower max_batch" in failed.message
    (alone,) = Driver(short).run(request("c10", random_ids(10, 10), max_tokens=400))
    done = completion(replies[tickets[0]])
    assert done.token_ids.size == alone.token_ids.size == 400
    assert completion(replies[tickets[2]]).token_ids.size == 20


def test_nothing_is_sampled_with_weights_that_are_half_taken(short: LocalModel) -> None:
    driver = Driver(short)
    running = driver.submit(request("running", random_ids(0, 9), max_tokens=900))
    driver.scheduler.step()
    forward_of(short).refreshes_fail = 1
    with pytest.raises(ShortageError):
        driver.scheduler.swap(1)
    driver.scheduler.unfit("half of the weights are there")
    late = driver.submit(request("late", random_ids(0, 9)))
    replies = driver.finish()
    for ticket in (running, late):
        failed = replies[ticket]
        assert isinstance(failed, wire.Failed)
        assert failed.message == "half of the weights are there"
    driver.scheduler.swap(1)
    (after,) = driver.run(request("after", random_ids(0, 9)))
    assert after.min_policy_version == 1


class Exact:
    """A pass whose logits follow from all of a row's KV, bit by bit, whatever else is in the batch."""

    name = "exact"

    def run(self, decodes: list[DecodeRows], pieces: list[Piece]) -> torch.Tensor:
        logits: list[torch.Tensor] = []
        for rows in decodes:
            keys = rows.slab.keys[0]
            for index, (token, position) in enumerate(zip(rows.token_ids, rows.positions, strict=True)):
                keys[index, 0, position, 0] = int(token) + int(position) * 300
                seen = int(keys[index, 0, : position + 1, 0].sum())
                logits.append(torch.randn(264, generator=torch.Generator().manual_seed(seen)))
        for piece in pieces:
            values = torch.as_tensor(piece.token_ids.astype(np.int64)) + torch.arange(piece.start, piece.length) * 300
            piece.place.slab.keys[0][piece.place.index, 0, piece.start : piece.length, 0] = values.double()
        return torch.stack(logits) if logits else torch.empty(0, 0)

    def refresh(self) -> None:
        """There are no weights."""


class ExactModel:
    """What a scheduler asks of a :class:`LocalModel`."""

    context_length = 1024
    vocab_size = 264
    tokenizer = None
    layout = KvLayout(layers=(LayerShape(key_heads=1, key_size=1, value_heads=1, value_size=1),), dtype=torch.float64)
    forward = Exact()


@pytest.mark.parametrize("seed", range(6))
def test_memory_that_runs_out_anywhere_changes_no_other_completion(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One allocation in twenty fails: of rows, of rows that grow, of what is kept of them."""
    model: Any = ExactModel()
    wanted = [
        request(f"c{number % 4}", random_ids(number % 3, 20 + 70 * (number % 5)), max_tokens=10 + 40 * (number % 3))
        for number in range(12)
    ]
    expected = [one.token_ids.tolist() for one in Driver(model, max_batch=6).run(*wanted)]
    chance = np.random.default_rng(seed)
    zeros, clone = torch.zeros, torch.Tensor.clone

    def allocate(count: int) -> None:
        if count and chance.random() < 0.05:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    def scarce_zeros(*size: int, **options: Any) -> torch.Tensor:
        allocate(size[0])
        return zeros(*size, **options)

    def scarce_clone(tensor: torch.Tensor) -> torch.Tensor:
        allocate(tensor.numel())
        return clone(tensor)

    driver = Driver(model, max_batch=6)
    with monkeypatch.context() as scarce:
        scarce.setattr(torch, "zeros", scarce_zeros)
        scarce.setattr(torch.Tensor, "clone", scarce_clone)
        tickets = [driver.submit(one) for one in wanted]
        replies = driver.finish()
    for ticket, tokens in zip(tickets, expected, strict=True):
        reply = replies[ticket]
        assert isinstance(reply, wire.Failed) or completion(reply).token_ids.tolist() == tokens
    assert driver.scheduler.begun == 0


@pytest.mark.parametrize("error", [ValueError("out of memory"), RuntimeError("shapes do not match"), OSError(2, "no")])
def test_other_faults_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, shortage():
        raise error
    assert caught.value is error


def test_what_numpy_says_is_understood() -> None:
    with pytest.raises(ShortageError, match="out of memory"), shortage():
        np.empty(1 << 60, dtype=np.int8)
