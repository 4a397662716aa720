"""A server that lacks what a run needs is refused before anything is sampled, by the name of what it lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from longrein.doctor.tokenizer import Tokenizer
from longrein.engines.base import Engine, TokenizingEngine
from longrein.engines.render import ChatRenderer
from longrein.engines.vllm.answers import Answer
from longrein.engines.vllm.control import ControlTimeouts, ServerControl
from longrein.engines.vllm.requirements import require_adapters, require_rank, require_transfer, require_updates
from longrein.engines.vllm.routes import CompletionsRoute, TokensRoute
from longrein.engines.vllm.spec import VllmEngineSpec
from longrein.errors import EngineError, EngineRouteError
from longrein.train.vllm.shapes import folder_shapes
from tests import tiny
from tests.engines.vllm import rig
from tests.engines.vllm.closed_ports import dead_url
from tests.engines.vllm.stand_in import Settings, StandIn
from tests.waiting import until


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_model(tmp_path_factory.mktemp("model"))


@contextmanager
def control(server: StandIn) -> Iterator[ServerControl]:
    with ServerControl(server.url, ControlTimeouts(health_s=60.0, update_s=60.0)) as made:
        yield made


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ({"processed_logprobs": False}, "--logprobs-mode processed_logprobs"),
        ({"context_length": 100}, f"--max-model-len {rig.CONTEXT}"),
        ({"other_tokenizer": True}, "--model"),
        ({"scale_out": False, "completions": False}, "--enable-scale-out"),
    ],
)
async def test_clients_refuse(model: Path, lacks: dict[str, Any], says: str) -> None:
    async with StandIn(Settings(**lacks)).listening() as server:
        with pytest.raises(EngineError, match=says):
            await rig.spec(server.url, model=model).connect()


async def test_nobody_there_is_refused(model: Path) -> None:
    with dead_url() as dead, pytest.raises(EngineError, match="start it, or correct the URL"):
        await rig.spec(dead, model=model, connect_timeout_s=0.5).connect()


async def test_a_server_that_has_not_got_the_runs_weights_back_is_waited_for(model: Path) -> None:
    async with StandIn(Settings()).listening() as server:
        spec = rig.spec(server.url, model=model, published=True, connect_timeout_s=120.0)
        connecting = asyncio.create_task(spec.connect())
        await until(lambda: server.reads["/weight_info"] >= 3)
        assert not connecting.done()
        assert server.asked == []
        server.settings.label = "4"
        engine = await connecting
        assert (await engine.generate(rig.request([5]))).max_policy_version == 4
        await engine.close()


async def test_a_server_that_was_left_paused_is_not_waited_for_without_end(model: Path) -> None:
    async with StandIn(Settings(paused=True)).listening() as server:
        with pytest.raises(EngineError, match=r"is well, but sampled not one token within 0.5 s.*POST /resume"):
            await rig.spec(server.url, model=model, outage_timeout_s=0.5).connect()


async def test_the_servers_own_tokenizer_is_asked(model: Path) -> None:
    async with StandIn(Settings()).listening() as server:
        engine = await rig.spec(server.url, model=model).connect()
        assert isinstance(engine, TokenizingEngine)
        ours = tiny.tokenizer().encode("a probe", add_special_tokens=False)
        assert (await engine.tokenize("a probe")).tolist() == ours
        server.settings.other_tokenizer = True
        assert (await engine.tokenize("a probe")).tolist() == ours[::-1]
        server.settings.tokenizes = False
        with pytest.raises(EngineRouteError):
            await engine.tokenize("a probe")
        renderer = ChatRenderer.load(str(model))
        assert (await Tokenizer(Connected(engine), renderer).run()).status == "cannot tell"


class Connected:
    """A spec of a client that is there; the check closes it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def connect(self) -> Engine:
        return self._engine


@pytest.mark.parametrize(
    ("lacks", "require", "says"),
    [
        ({"dev_mode": False}, require_updates, "VLLM_SERVER_DEV_MODE=1"),
        ({"dev_mode": False}, require_adapters, "VLLM_SERVER_DEV_MODE=1"),
        ({"adapters": False}, require_adapters, "--enable-lora"),
        ({"adapters_at_run_time": False}, require_adapters, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ({}, lambda server: require_rank(server, 9), "--max-lora-rank 9"),
        ({}, lambda server: require_transfer(server, "nccl"), "no weight transfer; start it with --weight-transfer"),
        ({"transfer_backend": "ipc"}, lambda server: require_transfer(server, "nccl"), "has the.*'ipc'; start it with"),
        ({"label": "somebody's"}, require_updates, ""),
    ],
)
async def test_receivers_of_weights_refuse(lacks: dict[str, Any], require: Any, says: str) -> None:
    async with StandIn(Settings(**lacks)).listening() as server:
        with control(server) as found:
            if not says:
                await asyncio.to_thread(require, found)
                return
            with pytest.raises(EngineError, match=says):
                await asyncio.to_thread(require, found)


async def test_a_server_without_scale_out_is_asked_for_completions(model: Path) -> None:
    async with StandIn(Settings(scale_out=False, label="7")).listening() as server:
        engine = await rig.spec(server.url, model=model).connect()
        assert isinstance(engine._fleet.members[0].route, CompletionsRoute)
        completion = await engine.generate(rig.request([5], max_tokens=3))
        assert (completion.token_ids.dtype, completion.token_ids.tolist()) == (np.int32, [0, 1, 2])
        assert (completion.min_policy_version, completion.max_policy_version) == (7, 7)
        await engine.close()


async def test_every_field_that_decides_what_is_sampled_is_sent(model: Path) -> None:
    """Those of ``vllm/sampling_params.py`` that a generation_config.json may set, and our own."""
    decisive = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
    for settings, route in ((Settings(), TokensRoute), (Settings(scale_out=False), CompletionsRoute)):
        async with StandIn(settings).listening() as server:
            engine = await rig.spec(server.url, model=model).connect()
            assert isinstance(engine._fleet.members[0].route, route)
            await engine.generate(rig.request([5]))
            sent = server.asked[-1].get("sampling_params", server.asked[-1])
            assert decisive | {"max_tokens", "min_tokens", "ignore_eos", "stop_token_ids", "seed"} <= sent.keys()
            await engine.close()


async def test_a_connection_that_breaks_is_tried_again_and_a_label_of_another_is_not(model: Path) -> None:
    async with StandIn(Settings()).listening() as server:
        engine = await VllmEngineSpec(urls=(server.url,), model=str(model), outage_timeout_s=60.0).connect()
        server.settings.resets = 1
        assert (await engine.generate(rig.request([5], max_tokens=3))).token_ids.size == 3
        server.settings.label = "somebody's"
        with pytest.raises(EngineError, match="somebody else publishes to it"):
            await engine.generate(rig.request([5]))
        await engine.close()


@pytest.mark.parametrize("body", [b"[]", b"{}", b"7", b"<html>"])
def test_what_is_no_vllm_server_is_said_so(body: bytes) -> None:
    answer = Answer(url="http://h:1", path="/weight_info", status=200, body=body)
    with pytest.raises(EngineError, match="is it a vLLM server"):
        answer.field("weight_version")


@pytest.mark.parametrize("error", [["a", "b"], "a", {"message": "a"}, None, 3])
def test_errors_of_any_form_are_told(error: Any) -> None:
    answer = Answer(url="http://h:1", path="/pause", status=500, body=msgspec.json.encode({"error": error}))
    with pytest.raises(EngineError, match="http://h:1/pause answered 500"):
        answer.refuse()


async def test_an_answer_without_a_completion_is_an_engine_fault(model: Path) -> None:
    async with StandIn(Settings()).listening() as server:
        engine = await rig.spec(server.url, model=model).connect()
        server.settings.no_choices = True
        with pytest.raises(EngineError, match="answered without what a run needs"):
            await engine.generate(rig.request([5]))
        await engine.close()


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1", b"\x02" + bytes(7) + b"[]"])
def test_a_folder_that_means_nothing_here_is_not_compared_with(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert folder_shapes(tmp_path) == {}
