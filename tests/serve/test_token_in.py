"""``/inference/v1/generate``: what comes out is what the engine sampled."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from longrein.engines.base import EngineRequest
from longrein.types import Sampling
from tests.engines.local.reference import forward_logprobs, ids, random_ids
from tests.serve.rig import CONTEXT, EOS, Rig

pytestmark = pytest.mark.asyncio(loop_scope="module")


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


async def events(rig: Rig, path: str, body: Any) -> list[Any]:
    async with rig.http.post(rig.url + path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in (await answer.text()).split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def values(choice: Any) -> list[float]:
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


async def test_ids_and_logprobs_are_those_of_the_engine_in_this_process(rig: Rig) -> None:
    prompt = random_ids(0, 20)
    sampling = Sampling(max_tokens=30, temperature=0.7, seed=5)
    wanted = await rig.engine.generate(
        EngineRequest(request_id="a", conversation_id="a", prompt_ids=prompt, sampling=sampling)
    )
    choice = await rig.generate(prompt.tolist(), max_tokens=30, temperature=0.7, seed=5)
    assert choice["token_ids"] == wanted.token_ids.tolist()
    assert np.float32(values(choice)).tolist() == wanted.logprobs.tolist()
    assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]
    assert choice["finish_reason"] == "length"
    assert choice["weight_versions"] == [{"version": "default", "start": 0, "end": 30}]


async def test_logprobs_are_the_trainers(rig: Rig, first: Path) -> None:
    module: torch.nn.Module = AutoModelForCausalLM.from_pretrained(first)
    prompt = random_ids(1, 40)
    choice = await rig.generate(prompt.tolist(), max_tokens=20, seed=1)
    np.testing.assert_allclose(values(choice), forward_logprobs(module, prompt, ids(choice["token_ids"])), atol=1e-4)


async def test_a_stream_has_the_same_token_by_token(rig: Rig) -> None:
    prompt = random_ids(2, 10).tolist()
    params = {"max_tokens": 20, "logprobs": 1, "seed": 3, "ignore_eos": True}
    body = {"token_ids": prompt, "sampling_params": params, "request_id": "mine", "return_token_ids": True}
    _status, whole = await rig.post("/inference/v1/generate", body)
    got = await events(
        rig, "/inference/v1/generate", {**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    *chunks, usage = got
    assert {chunk["request_id"] for chunk in got} == {"generate-tokens-mine"}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert flat(choice["token_ids"] for choice in choices) == whole["choices"][0]["token_ids"]
    assert flat(map(values, choices)) == values(whole["choices"][0])
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert choices[-1]["weight_versions"] == whole["choices"][0]["weight_versions"]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"] == prompt
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    assert usage["choices"] == []
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (10, 20)


async def test_several_choices_are_sampled_apart(rig: Rig) -> None:
    body = {"token_ids": [5, 6, 7], "sampling_params": {"n": 3, "max_tokens": 12, "seed": 1, "ignore_eos": True}}
    _status, whole = await rig.post("/inference/v1/generate", body)
    completions = [choice["token_ids"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert len({tuple(one) for one in completions}) == 3
    assert whole["usage"]["completion_tokens"] == 36
    joined: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for chunk in await events(rig, "/inference/v1/generate", {**body, "stream": True}):
        joined[chunk["choices"][0]["index"]] += chunk["choices"][0]["token_ids"]
    assert list(joined.values()) == completions


async def test_what_ends_a_completion_is_said(rig: Rig) -> None:
    sampled = await rig.generate([5, 6, 7], max_tokens=40, seed=11)
    stop = sampled["token_ids"][4]
    before = sampled["token_ids"].index(stop)
    by_id = await rig.generate([5, 6, 7], max_tokens=40, seed=11, stop_token_ids=[stop])
    assert by_id["token_ids"] == sampled["token_ids"][: before + 1]
    assert (by_id["finish_reason"], by_id["stop_reason"]) == ("stop", stop)
    text = rig.tokenizer.decode(sampled["token_ids"][3:6])
    by_text = await rig.generate([5, 6, 7], max_tokens=40, seed=11, stop=[text])
    assert (by_text["finish_reason"], by_text["stop_reason"]) == ("stop", text)


async def test_the_end_token_ends_unless_it_is_ignored(rig: Rig) -> None:
    seeds = range(60)
    ended = [await rig.generate([9, 9], max_tokens=60, seed=seed, ignore_eos=False) for seed in seeds]
    stopped = [choice for choice in ended if choice["finish_reason"] == "stop"]
    assert stopped
    assert all(choice["token_ids"][-1] == EOS and choice["stop_reason"] is None for choice in stopped)
    assert EOS not in flat(choice["token_ids"][:-1] for choice in ended)


async def test_a_session_computes_only_its_new_tokens(rig: Rig) -> None:
    prompt = random_ids(7, 90).tolist()
    body = {"token_ids": prompt, "sampling_params": {"max_tokens": 9, "ignore_eos": True}}
    _status, answer = await rig.post("/inference/v1/generate", body, **{"x-session-id": "s"})
    longer = [*prompt, *answer["choices"][0]["token_ids"], 4, 5]
    body["token_ids"] = longer
    _status, next_turn = await rig.post("/inference/v1/generate", body, **{"x-session-id": "s"})
    assert next_turn["usage"]["prompt_tokens_details"]["cached_tokens"] == len(longer) - 2


async def test_a_client_that_leaves_frees_its_request(rig: Rig) -> None:
    body = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 500, "ignore_eos": True}, "stream": True}
    for _ in range(40):
        async with rig.http.post(rig.url + "/inference/v1/generate", json=body) as answer:
            await answer.content.readany()
            answer.close()
    assert len((await rig.generate([1, 2]))["token_ids"]) == 8


BAD: list[tuple[Any, str]] = [
    ({"token_ids": [], "sampling_params": {}}, "token_ids"),
    ({"token_ids": "abc", "sampling_params": {}}, "token_ids"),
    ({"token_ids": [1, -1], "sampling_params": {}}, "token_ids"),
    ({"token_ids": [1, 2**40], "sampling_params": {}}, "token_ids"),
    ({"token_ids": [1, 264], "sampling_params": {}}, "264"),
    ({"token_ids": [1]}, "sampling_params"),
    ({"token_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
    ({"token_ids": [1], "sampling_params": {"temperature": "hot"}}, "temperature"),
    ({"token_ids": [1], "sampling_params": {"top_p": 0}}, "top_p"),
    ({"token_ids": [1], "sampling_params": {"max_tokens": 0}}, "max_tokens"),
    ({"token_ids": [1], "sampling_params": {"n": 0}}, "n must be"),
    ({"token_ids": [1], "sampling_params": {"seed": -5}}, "seed"),
    ({"token_ids": [1], "sampling_params": {"seed": 2**70}}, "seed"),
    ({"token_ids": [1], "sampling_params": {"top_k": 2**63}}, "top_k"),
    ({"token_ids": [1], "sampling_params": {"stop": [""]}}, "stop"),
    ({"token_ids": [1], "sampling_params": {"logprobs": 5}}, "logprobs"),
    ({"token_ids": [1], "sampling_params": {"prompt_logprobs": 0}}, "prompt_logprobs"),
    ({"token_ids": [1], "sampling_params": {"repetition_penalty": 1.1}}, "repetition_penalty"),
    ({"token_ids": [1], "sampling_params": {"structured_outputs": {"json": {}}}}, "structured_outputs"),
    ({"token_ids": [1], "sampling_params": {}, "output_mode": "text"}, "output_mode"),
    ({"token_ids": [1] * CONTEXT, "sampling_params": {}}, "is longer than the maximum model length of 512"),
    ([1, 2, 3], "object"),
]


@pytest.mark.parametrize(("body", "named"), BAD)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_request_is_a_400_that_names_what_is_wrong(rig: Rig, body: Any, named: str, stream: bool) -> None:
    body = {**body, "stream": stream} if isinstance(body, dict) else body
    status, answer = await rig.post("/inference/v1/generate", body)
    error = answer["error"]
    assert (status, error["type"], error["code"]) == (400, "BadRequestError", 400)
    assert named in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (await rig.generate([1]))["finish_reason"] == "length"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b'{"token_ids": ' + b"[" * 100_000])
async def test_what_is_no_json_is_refused(rig: Rig, data: bytes) -> None:
    async with rig.http.post(rig.url + "/inference/v1/generate", data=data) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["type"] == "BadRequestError"
    assert (await rig.generate([1]))["finish_reason"] == "length"


async def test_another_model_and_another_method_are_refused(rig: Rig, first: Path) -> None:
    body = {"token_ids": [1], "sampling_params": {"max_tokens": 1}}
    status, answer = await rig.post("/inference/v1/generate", {**body, "model": "nobody"})
    assert (status, answer["error"]["type"], answer["error"]["param"]) == (404, "NotFoundError", "model")
    assert str(first) in answer["error"]["message"]
    for name in (str(first), "tiny", None):
        assert (await rig.post("/inference/v1/generate", {**body, "model": name}))[0] == 200
    assert (await rig.get("/inference/v1/generate"))[0] == 405


async def test_many_at_once_are_all_answered(rig: Rig) -> None:
    choices = await asyncio.gather(*[rig.generate([3, 4, index], max_tokens=10, seed=index) for index in range(64)])
    assert all(len(choice["token_ids"]) == 10 for choice in choices)
