"""vLLM's weight-transfer API, on a real server, with a backend that needs no GPU in the place of NCCL's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from longrein.engines.vllm.client import VllmEngine
from longrein.engines.vllm.control import ControlTimeouts, ServerControl
from longrein.engines.vllm.requirements import require_transfer
from longrein.engines.vllm.updates import WeightUpdates
from longrein.errors import EngineError
from longrein.train.vllm.tied import tied_names
from longrein.train.vllm.transfer import TransferWeights
from longrein.train.weights import named_weights
from tests.engines.vllm import rig
from tests.engines.vllm.versions import VERSIONS

pytestmark = pytest.mark.vllm
PROMPT = [10, 20, 30, 40]


class SocketLink:
    """The trainer's end of ``server_side/longrein_test_backend.py``."""

    backend = "longrein_socket"

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(30)
        self._streams: dict[int, socket.socket] = {}

    def offer(self, rank_offset: int, world_size: int) -> Mapping[str, Any]:
        return {"port": self._listener.getsockname()[1], "rank_offset": rank_offset, "world_size": world_size}

    def join(self, world_size: int) -> None:
        while len(self._streams) < world_size - 1:
            stream, _ = self._listener.accept()
            rank, told = stream.recv(2)
            assert told == world_size
            self._streams[rank] = stream

    def send(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for tensor in tensors.values():
            for stream in self._streams.values():
                stream.sendall(tensor.contiguous().view(torch.uint8).numpy().tobytes())

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()
        self._listener.close()


@pytest.fixture
def weights(served: Any) -> Iterator[TransferWeights]:
    model = rig.load(served.model)
    updates = WeightUpdates([ServerControl(served.url, ControlTimeouts())], pause="keep", outage_timeout_s=5)
    made = TransferWeights(updates, SocketLink(), tied_names(model), timeout_s=30)
    yield made
    made.close()
    with ServerControl(served.url, ControlTimeouts()) as server:
        server.call("/shutdown_weight_transfer_engine")


async def test_weights_that_were_sent_are_sampled_with_also_by_what_is_in_flight(
    served: Any, weights: TransferWeights
) -> None:
    model = rig.load(served.model)
    engine: VllmEngine = await rig.spec(served.url, model=served.model).connect()
    before = next(VERSIONS)
    await asyncio.to_thread(weights.update, named_weights(model), before)
    with rig.slowed(served.url):
        requests = [rig.long_request(PROMPT, name=f"t{n}") for n in range(3)]
        asked = await rig.under_way(served.url, [engine.generate(request) for request in requests])
        after = next(VERSIONS)
        rig.shake(model, after)
        await asyncio.to_thread(weights.update, named_weights(model), after)
    for done in await asyncio.gather(*asked):
        assert (done.min_policy_version, done.max_policy_version) == (before, after)
        assert abs(rig.trainers_logprobs(model, PROMPT, done.token_ids) - done.logprobs)[-20:].max() < 1e-4
    completion = await engine.generate(rig.request(PROMPT))
    assert completion.min_policy_version == after
    assert rig.gap(model, PROMPT, completion) < 1e-4
    await engine.close()


def test_another_backend_is_refused_by_name(served: Any) -> None:
    with (
        ServerControl(served.url, ControlTimeouts()) as server,
        pytest.raises(
            EngineError, match=r"has the weight-transfer backend 'longrein_socket'.*--weight-transfer-config"
        ),
    ):
        require_transfer(server, "nccl")
