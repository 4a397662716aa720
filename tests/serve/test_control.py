"""Pause, resume, new weights and their versions, as a trainer asks for them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from tests import tiny
from tests.engines.local.reference import forward_logprobs, ids
from tests.gateway.rig import PATIENCE_S, until
from tests.serve.rig import Rig, serving
from tests.serve.streams import LONG, Stream, asked_meanwhile, frozen, halted, pause, resume

pytestmark = pytest.mark.asyncio(loop_scope="module")
OVERTAKEN = "a later pause or resume came before all requests had ended; pause again"


@pytest.fixture(scope="module")
def process(first: Path) -> Iterator[LocalEngineProcess]:
    """Of its own: the versions of an engine only grow."""
    with LocalEngineProcess(LocalEngineConfig(model=str(first), context_length=512)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(process: LocalEngineProcess, first: Path) -> AsyncIterator[Rig]:
    async with serving(process, first) as running:
        yield running


async def until_paused(rig: Rig) -> None:
    # Each question gives the pause a turn.
    while (await rig.get("/is_paused"))[1] != {"is_paused": True}:
        pass


async def test_new_weights_change_version_and_outputs(rig: Rig, first: Path, second: Path) -> None:
    module: torch.nn.Module = AutoModelForCausalLM.from_pretrained(second)
    before = await rig.generate([5, 6, 7], max_tokens=20, seed=1)
    await rig.reload(second, "12")
    after = await rig.generate([5, 6, 7], max_tokens=20, seed=1)
    assert after["token_ids"] != before["token_ids"]
    assert after["weight_versions"] == [{"version": "12", "start": 0, "end": 20}]
    assert await rig.get("/weight_info") == (200, {"weight_version": "12"})
    logprobs = [entry["logprob"] for entry in after["logprobs"]["content"]]
    np.testing.assert_allclose(logprobs, forward_logprobs(module, ids([5, 6, 7]), ids(after["token_ids"])), atol=1e-4)
    await rig.reload(first, "13")
    assert (await rig.generate([5, 6, 7], max_tokens=20, seed=1))["token_ids"] == before["token_ids"]


@pytest.mark.parametrize("paused", [False, True])
async def test_a_request_across_new_weights_has_spans_of_both(rig: Rig, second: Path, paused: bool) -> None:
    version = 20
    await rig.reload(second, str(version))
    if paused:
        stream = await frozen(rig)
        await rig.reload(second, str(version + 1))
        await resume(rig)
        crossed = [await stream.end()]
    else:
        crossed = list[Any]()
        async with asyncio.timeout(PATIENCE_S):
            # The weights may come between two requests.
            while not crossed:
                ends = await asked_meanwhile(rig, rig.reload(second, str(version + 1)))
                crossed = [last for last in ends if len(last["weight_versions"]) > 1]
                version += 1
            version -= 1
    (last,) = crossed
    assert last["finish_reason"] == "length"
    old, new = last["weight_versions"]
    assert (old["version"], new["version"]) == (str(version), str(version + 1))
    assert 0 == old["start"] < old["end"] == new["start"] < new["end"] == 450


async def test_frozen_requests_go_on_and_late_ones_wait(rig: Rig) -> None:
    stream = await frozen(rig)
    late = asyncio.create_task(rig.generate([1, 2]))
    await until(lambda: len(stream.token_ids) == stream.sampled)
    count = len(stream.token_ids)
    await asyncio.sleep(0.3)
    await rig.hear_all()
    assert stream.sampled == len(stream.token_ids) == count
    assert 0 < count < 450, "they are told as they are sampled"
    assert not late.done()
    await resume(rig)
    assert (await stream.end())["finish_reason"] == "length"
    assert len(stream.token_ids) == 450
    assert len((await late)["token_ids"]) == 8


async def test_an_aborted_request_keeps_what_was_sampled(rig: Rig) -> None:
    stream = await halted(rig)
    whole = asyncio.create_task(rig.generate([9, 9], **LONG))
    await until(lambda: rig.under_way == 2)
    await pause(rig, "abort")
    last = await stream.end()
    assert last["finish_reason"] == "abort"
    assert 0 < len(stream.token_ids) < 450
    assert last["weight_versions"][-1]["end"] == len(stream.token_ids)
    assert (await whole)["finish_reason"] == "abort"
    await resume(rig)
    assert (await rig.generate([1]))["finish_reason"] == "length"


async def test_waiting_lets_requests_end(rig: Rig) -> None:
    stream = await Stream(rig).begin()
    await pause(rig, "wait")
    assert (await stream.end())["finish_reason"] == "length"
    await resume(rig)


async def test_waiting_lets_requests_end_that_an_earlier_pause_froze(rig: Rig) -> None:
    stream = await frozen(rig)
    late = asyncio.create_task(rig.generate([1, 2]))
    await asyncio.wait_for(pause(rig, "wait"), PATIENCE_S)
    assert (await stream.end())["finish_reason"] == "length"
    assert not late.done(), "nothing new begins"
    await resume(rig)
    assert len((await late)["token_ids"]) == 8


async def test_a_pause_that_freezes_what_another_one_waits_for_is_told(rig: Rig) -> None:
    stream = await halted(rig)
    waiting = asyncio.create_task(rig.post("/pause?mode=wait"))
    await until_paused(rig)
    await pause(rig, "keep")
    status, answer = await asyncio.wait_for(waiting, PATIENCE_S)
    assert (status, answer["error"]["code"]) == (409, 409)
    assert len(stream.token_ids) < 450
    await resume(rig)
    assert (await stream.end())["finish_reason"] == "length"


async def test_a_resume_while_a_pause_still_waits_wins(rig: Rig) -> None:
    stream = await halted(rig)
    waiting = asyncio.create_task(rig.post("/pause?mode=wait"))
    await until_paused(rig)
    await resume(rig)
    status, answer = await asyncio.wait_for(waiting, PATIENCE_S)
    assert (status, answer["error"]["message"]) == (409, OVERTAKEN)
    await stream.end()
    assert (await rig.generate([1]))["finish_reason"] == "length"


async def test_a_chat_aborted_by_a_pause_is_sampled_again(rig: Rig) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 400}
    await rig.halt()
    chat = asyncio.create_task(rig.post("/v1/chat/completions", body))
    await until(lambda: rig.under_way)
    await pause(rig, "abort")
    await resume(rig)
    status, answer = await chat
    assert status == 200, answer
    assert answer["choices"][0]["message"]["role"] == "assistant"


async def test_all_that_runs_can_be_cut_off_without_a_pause(rig: Rig) -> None:
    stream = await halted(rig)
    assert await rig.post("/abort_requests", {}) == (200, {"status": "aborted", "aborted": 1})
    assert (await stream.end())["finish_reason"] == "abort"
    await rig.go_on()


async def test_a_cleared_cache_computes_anew(rig: Rig) -> None:
    body = {"token_ids": list(range(3, 203)), "sampling_params": {"max_tokens": 1}}

    async def cached() -> int:
        _status, answer = await rig.post("/inference/v1/generate", body)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    await rig.post("/reset_prefix_cache?reset_running_requests=true")
    first, second = await cached(), await cached()
    assert await rig.post("/reset_prefix_cache") == (200, {"success": True})
    assert (first, await cached()) == (0, 0)
    assert second > 0


async def test_weights_that_cannot_be_taken_leave_the_old_ones(rig: Rig, first: Path, tmp_path: Path) -> None:
    await rig.reload(first, "30")
    before = await rig.generate([5, 6, 7], seed=1)
    other = tiny.save_model(tmp_path / "other", hidden_size=32)
    damaged = tiny.save_model(tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"nothing")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "nowhere", tmp_path / "empty", other, damaged):
        rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        status, answer = await rig.post("/collective_rpc", rpc)
        assert (status, answer["error"]["type"]) == (400, "BadRequestError")
        assert str(folder) in answer["error"]["message"]
    after = await rig.generate([5, 6, 7], seed=1)
    assert after == before
    assert after["weight_versions"][0]["version"] == "30"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/pause?mode=never", None),
        ("/collective_rpc", {"method": "exit"}),
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": 3}}),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "long" * 2000}}),
        ("/update_weight_version", {"new_version": 3}),
        ("/update_weight_version", {}),
        ("/tokenize", {}),
        ("/detokenize", {"tokens": [999]}),
    ],
)
async def test_bad_commands_are_refused(rig: Rig, path: str, body: Any) -> None:
    status, answer = await rig.post(path, body)
    assert (status, answer["error"]["code"]) == (400, 400)
    assert await rig.get("/is_paused") == (200, {"is_paused": False})


async def test_weights_that_nobody_named_have_the_next_name(rig: Rig, first: Path) -> None:
    await rig.reload(first, "41")
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(first)}}
    await rig.post("/collective_rpc", rpc)
    assert await rig.get("/weight_info") == (200, {"weight_version": "42"})


async def test_what_is_told_of_the_server(rig: Rig, first: Path) -> None:
    assert await rig.get("/health") == (200, None)
    status, version = await rig.get("/version")
    assert (status, version["version"]) == (200, "0.32.0")
    _status, models = await rig.get("/v1/models")
    assert [card["id"] for card in models["data"]] == [str(first), "tiny"]
    assert {card["max_model_len"] for card in models["data"]} == {512}
    _status, info = await rig.get("/server_info?config_format=json")
    assert info["vllm_config"]["model_config"]["logprobs_mode"] == "processed_logprobs"


async def test_text_and_ids(rig: Rig) -> None:
    _status, answer = await rig.post("/tokenize", {"prompt": "hi", "add_special_tokens": False})
    assert answer["tokens"] == rig.tokenizer.encode("hi", add_special_tokens=False)
    assert (answer["count"], answer["max_model_len"]) == (2, 512)
    assert await rig.post("/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": "hi"})
    messages = [{"role": "user", "content": "hi"}]
    _status, chat = await rig.post("/tokenize", {"messages": messages})
    wanted = rig.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert chat["tokens"] == wanted


async def test_a_key_is_asked_for_where_there_is_one(process: LocalEngineProcess, first: Path) -> None:
    async with serving(process, first, api_key="s3cret") as rig:
        for path in ("/inference/v1/generate", "/pause", "/collective_rpc", "/v1/chat/completions", "/v1/messages"):
            for headers in ({}, {"authorization": "Bearer wrong"}):
                assert (await rig.post(path, {}, **headers))[0] == 401
        assert (await rig.get("/health"))[0] == 200
        assert (await rig.get("/v1/models", authorization="Bearer s3cret"))[0] == 200
        assert (await rig.get("/v1/models", **{"x-api-key": "s3cret"}))[0] == 200


async def test_an_engine_that_died_is_told(first: Path) -> None:
    with LocalEngineProcess(LocalEngineConfig(model=str(first), context_length=512)) as process:
        async with serving(process, first) as rig:
            stream = await halted(rig)
            process.stop()
            assert (await stream.end())["error"]["type"] == "InternalServerError"
            status, answer = await rig.post("/inference/v1/generate", {"token_ids": [1], "sampling_params": {}})
            assert (status, answer["error"]["type"]) == (500, "InternalServerError")
            async with rig.http.get(rig.url + "/health") as health:
                assert health.status == 503


async def test_commands_to_an_engine_that_died_are_an_outage(first: Path) -> None:
    """Not a bare 500, nor a refusal of what was asked."""
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(first)}}
    with LocalEngineProcess(LocalEngineConfig(model=str(first), context_length=512)) as process:
        async with serving(process, first) as rig:
            os.kill(process.pid, signal.SIGKILL)
            for path in ("/pause?mode=keep", "/pause?mode=wait", "/pause", "/resume", "/reset_prefix_cache"):
                status, answer = await rig.post(path)
                assert (status, answer["error"]["type"], answer["error"]["code"]) == (
                    503,
                    "ServiceUnavailableError",
                    503,
                )
                assert "died with exit code -9" in answer["error"]["message"]
            assert (await rig.post("/collective_rpc", rpc))[0] == 503
            # Whoever asks for tokens is told as well, and does not wait at a gate that nobody opens.
            status, answer = await rig.post("/inference/v1/generate", {"token_ids": [1], "sampling_params": {}})
            assert (status, answer["error"]["type"]) == (500, "InternalServerError")
