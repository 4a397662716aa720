"""Weights that servers get back are those of their version, whatever else lies or goes on beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from longrein.engines.base import AdapterSpec, AdapterTarget
from longrein.engines.vllm import updates as updates_module
from longrein.engines.vllm.labels import UNLABELLED
from longrein.errors import EngineError
from longrein.train.vllm import folder as folder_module
from longrein.train.vllm.delta import DeltaWeights
from longrein.train.vllm.folder import WeightFolder, write_tensors
from longrein.train.vllm.lora import AdapterWeights
from longrein.train.vllm.transfer import TransferWeights
from tests.engines.vllm.stand_in import Settings, StandIn
from tests.engines.vllm.test_updates import updates
from tests.engines.vllm.test_updates_that_fail import Link
from tests.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    async with StandIn(Settings()).listening() as made:
        yield made


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((2,), value)}


def loaded(server: StandIn) -> float:
    """What it was told to load last."""
    folder = next(call for call in reversed(server.calls) if call.startswith("/collective_rpc")).split()[1]
    return float(load_file(Path(folder) / "model.safetensors")["a"][0])


async def given_back(server: StandIn) -> float:
    """What a server is given that was started again."""
    server.settings.label = UNLABELLED
    await until(lambda: server.settings.label != UNLABELLED and not server.stands_still)
    return loaded(server)


async def test_a_version_that_was_published_twice_is_the_second(server: StandIn, tmp_path: Path) -> None:
    """As version 0 is: the model as it came, and after its warm start."""
    receiver = DeltaWeights(updates(server.url), tmp_path, {})
    for value in (1.0, 2.0):
        await asyncio.to_thread(receiver.update, weights(value), 0)
    assert await given_back(server) == 2.0
    await asyncio.to_thread(receiver.close)


async def test_what_a_killed_run_left_is_not_taken_for_ours(server: StandIn, tmp_path: Path) -> None:
    write_tensors(weights(7.0), tmp_path / "v3")
    receiver = DeltaWeights(updates(server.url), tmp_path, {})
    await asyncio.to_thread(receiver.update, weights(1.0), 3)
    assert loaded(server) == 1.0
    await asyncio.to_thread(receiver.close)


async def test_a_full_disk_is_no_end_of_looking_after_the_servers(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = DeltaWeights(updates(server.url), tmp_path, {})
    for version in (0, 1):
        await asyncio.to_thread(receiver.update, weights(version), version)
    tried = threading.Event()
    save = folder_module.save_file

    def full(*given: object) -> None:
        tried.set()
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(folder_module, "save_file", full)
    server.settings.label = UNLABELLED
    await until(tried.is_set)
    with pytest.raises(EngineError, match=r"cannot be written.*No space left"):
        await asyncio.to_thread(receiver.update, weights(2.0), 2)
    monkeypatch.setattr(folder_module, "save_file", save)
    await until(lambda: server.settings.label == "1" and not server.stands_still)
    await asyncio.to_thread(receiver.update, weights(3.0), 3)
    assert await given_back(server) == 3.0
    await asyncio.to_thread(receiver.close)


async def test_no_server_is_given_an_adapter_that_is_about_to_go(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next request would end it."""
    receiver = AdapterWeights(updates(server.url), tmp_path, {})
    await asyncio.to_thread(receiver.update, weights(0.0), 0)
    factors = {"m.lora_A.weight": torch.zeros(1, 2), "m.lora_B.weight": torch.zeros(2, 1)}
    spec = AdapterSpec(targets={"m": AdapterTarget(rank=1, scaling=1.0)})
    await asyncio.to_thread(receiver.update_adapter, factors, spec, 1)
    reloading, go_on, load = threading.Event(), threading.Event(), WeightFolder.whole

    def slow(self: WeightFolder, given: object) -> None:
        reloading.set()
        assert go_on.wait(120)
        load(self, given)  # type: ignore[arg-type]

    monkeypatch.setattr(WeightFolder, "whole", slow)
    asked: list[str] = []
    for one in receiver._updates.servers:
        monkeypatch.setattr(one, "unload_adapter", lambda: asked.append("unload"))
        monkeypatch.setattr(one, "load_adapter", lambda _folder: asked.append("load"))
    server.settings.label = UNLABELLED
    await until(reloading.is_set)
    closing = asyncio.create_task(asyncio.to_thread(receiver.close))
    await until(receiver._updates._closed.is_set)
    go_on.set()
    await closing
    # The base's reload asks for an unload, too; the last word counts.
    assert (asked.count("load"), asked[-1]) == (1, "unload")


class Gate:
    """Weights that take as long to load as they are told."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def refuse_gone(self, server: object) -> None:
        """They are there."""

    def change(self, server: object) -> None:
        self.whole(server)

    def whole(self, server: object) -> None:
        self.begun.set()
        assert self.go_on.wait(120)


async def test_an_interrupted_update_goes_on_alone_to_its_end(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next one's servers would still be given these weights, under its own label."""
    made, gate = updates(server.url), Gate()

    def interrupted(_doing: object) -> None:
        assert gate.begun.wait(120)
        raise KeyboardInterrupt

    def publish() -> None:
        with pytest.raises(KeyboardInterrupt):
            made.publish(gate, 5)

    monkeypatch.setattr(updates_module, "wait", interrupted)
    publishing = asyncio.create_task(asyncio.to_thread(publish))
    await until(gate.begun.is_set)
    assert made._lock.locked()
    gate.go_on.set()
    await publishing
    assert (server.settings.label, server.stands_still) == ("5", False)
    await asyncio.to_thread(made.close)


async def test_after_an_interrupted_transfer_servers_join_anew(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is still on its way is not mixed with what comes next."""
    link = Link()
    receiver = TransferWeights(updates(server.url), link, {}, timeout_s=60.0)
    await asyncio.to_thread(receiver.update, weights(1.0), 1)

    def interrupted(*_given: object) -> None:
        raise KeyboardInterrupt

    def update() -> None:
        with pytest.raises(KeyboardInterrupt):
            receiver.update(weights(2.0), 2)

    with monkeypatch.context() as patch:
        patch.setattr(receiver._updates, "publish", interrupted)
        await asyncio.to_thread(update)
    assert link.joined == [2]
    await asyncio.to_thread(receiver.update, weights(3.0), 3)
    assert link.joined == [2, 2]
    await asyncio.to_thread(receiver.close)
