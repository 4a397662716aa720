"""SGLang's client against a stand-in that answers as its documentation and source say; no real server runs here."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web
from safetensors.torch import load_file

from longrein.engines.base import EngineRequest
from longrein.engines.sglang import SglangEngine, SglangEngineSpec
from longrein.engines.sglang_control import SglangControl
from longrein.errors import ContextLengthError, EngineError, EngineRequestError, EngineUnreachableError
from longrein.train.sglang_weights import SglangWeights
from longrein.types import Sampling
from tests import tiny
from tests.gateway.rig import until

CONTEXT = 128


class StandIn:
    """An SGLang server that samples 7, 8, 9, ... each with a logprob of its own."""

    def __init__(self) -> None:
        self.version = "default"
        self.asked: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.aborted: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.finish = "length"
        self.port = 0
        self.weights: dict[str, Any] = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/get_model_info", self.info),
                web.post("/generate", self.generate),
                web.post("/abort_request", self.abort),
                web.post("/pause_generation", self.note),
                web.post("/continue_generation", self.note),
                web.post("/update_weights_from_disk", self.update),
            ]
        )
        return app

    async def info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "m", "is_generation": True, "weight_version": self.version})

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        params = body["sampling_params"]
        if params["temperature"] == 1.5:
            return web.json_response({"error": {"message": "temperature is refused"}}, status=400)
        await self.hold.wait()
        ids = list(range(7, 7 + params["max_new_tokens"]))
        meta = {
            "id": body["rid"],
            "finish_reason": {"type": self.finish, self.finish: len(ids)},
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 2,
            "weight_version": self.version,
            "output_token_logprobs": [[-0.5 * token, token, None] for token in ids],
        }
        return web.json_response({"text": "x", "output_ids": ids, "meta_info": meta})

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()

    async def note(self, request: web.Request) -> web.Response:
        self.calls.append(f"{request.path} {(await request.json()).get('mode', '')}".strip())
        return web.json_response({"status": "ok"})

    async def update(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(request.path)
        try:
            self.weights = load_file(Path(body["model_path"]) / "model.safetensors")
        except FileNotFoundError as error:
            answer = {
                "success": False,
                "message": f"{error} Rolling back to original weights.",
                "num_paused_requests": 0,
            }
            return web.json_response(answer, status=400)
        self.version = body["weight_version"]
        return web.json_response({"success": True, "message": "Succeeded", "num_paused_requests": 0})


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    stand_in = StandIn()
    runner = web.AppRunner(stand_in.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stand_in.port = runner.addresses[0][1]
    yield stand_in
    stand_in.hold.set()
    await runner.cleanup()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save_model(tmp_path_factory.mktemp("sglang")))


@pytest.fixture
async def engine(server: StandIn, model: str) -> AsyncIterator[SglangEngine]:
    spec = SglangEngineSpec(url=f"http://127.0.0.1:{server.port}", model=model, context_length=CONTEXT)
    client = await pickle.loads(pickle.dumps(spec)).connect()
    server.asked.clear()
    yield client
    await client.close()


def request(ids: list[int], **sampling: Any) -> EngineRequest:
    sampling = {"max_tokens": 4, **sampling}
    prompt = np.array(ids, dtype=np.int32)
    return EngineRequest(request_id="r", conversation_id="c", prompt_ids=prompt, sampling=Sampling(**sampling))


async def test_ids_and_their_logprobs_come_back(engine: SglangEngine, server: StandIn) -> None:
    completion = await engine.generate(request([5, 6, 3], stop=("x",), stop_token_ids=(2,), seed=9))
    assert completion.token_ids.tolist() == [7, 8, 9, 10]
    assert completion.logprobs.tolist() == [-3.5, -4.0, -4.5, -5.0]
    assert (completion.finish_reason, completion.prefill_tokens) == ("length", 1)
    (asked,) = server.asked
    assert asked["input_ids"] == [5, 6, 3]
    assert (asked["return_logprob"], asked["stream"], asked["rid"]) == (True, False, "r")
    assert asked["sampling_params"] == {
        "max_new_tokens": 4,
        "temperature": 1.0,
        "stop": ["x"],
        "stop_token_ids": [2],
        "sampling_seed": 9,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }


async def test_a_completion_across_an_update_has_both_versions(engine: SglangEngine, server: StandIn) -> None:
    assert (await engine.generate(request([5]))).max_policy_version == 0
    server.version = "3"
    server.hold.clear()
    running = asyncio.create_task(engine.generate(request([5])))
    await until(lambda: server.asked[1:])
    server.version = "4"
    server.hold.set()
    completion = await running
    assert (completion.min_policy_version, completion.max_policy_version) == (3, 4)


async def test_what_nobody_waits_for_is_aborted(engine: SglangEngine, server: StandIn) -> None:
    server.hold.clear()
    running = asyncio.create_task(engine.generate(request([5])))
    await until(lambda: server.asked)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await until(lambda: server.aborted)
    assert server.aborted == ["r"]


async def test_bad_requests_and_answers_are_told_apart(engine: SglangEngine, server: StandIn) -> None:
    for bad in (request([]), request([264]), request([5], top_p=0.5), request([5], temperature=1.5)):
        with pytest.raises(EngineRequestError):
            await engine.generate(bad)
    with pytest.raises(ContextLengthError):
        await engine.generate(request([5] * CONTEXT))
    room = await engine.generate(request([5] * (CONTEXT - 2), max_tokens=50))
    assert room.token_ids.size == 2
    server.finish = "abort"
    with pytest.raises(EngineError, match="abort"):
        await engine.generate(request([5]))
    server.finish, server.version = "length", "somebody else's"
    with pytest.raises(EngineError, match="no policy version"):
        await engine.generate(request([5]))


async def test_a_server_that_is_not_there_is_named(model: str) -> None:
    spec = SglangEngineSpec(url="http://127.0.0.1:9", model=model, context_length=CONTEXT)
    with pytest.raises(EngineUnreachableError, match=r"127\.0\.0\.1:9"):
        await spec.connect()


async def test_weights_come_by_a_folder_with_requests_held_back(server: StandIn, tmp_path: Path) -> None:
    control = SglangControl(f"http://127.0.0.1:{server.port}", timeout_s=120)
    weights = SglangWeights(control, tmp_path / "weights")
    await asyncio.to_thread(weights.update, {"w": torch.ones(2)}, 1)
    assert server.calls == ["/pause_generation retract", "/update_weights_from_disk", "/continue_generation"]
    assert (server.version, server.weights["w"].tolist()) == ("1", [1.0, 1.0])
    await asyncio.to_thread(weights.update, {"w": torch.zeros(2)}, 2)
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["v2"]
    with pytest.raises(EngineError, match="older"):
        weights.update({"w": torch.zeros(2)}, 1)
    server.calls.clear()
    with pytest.raises(EngineError, match="Rolling back"):
        await asyncio.to_thread(control.take, tmp_path / "nowhere", 3)
    assert server.calls[-1] == "/continue_generation", "the server goes on, whatever happened"
    weights.close()
    assert not (tmp_path / "weights").exists()
