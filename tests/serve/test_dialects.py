"""Any SDK talks to the model; a named session is one conversation, kept token by token."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types as gemini
from openai import AsyncOpenAI, BadRequestError

from longrein.engines.local.process import LocalEngineProcess
from longrein.store import read_groups
from tests.gateway.rig import until
from tests.serve.rig import CONTEXT, Rig, serving

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
HI: Any = {"role": "user", "content": "hi"}


async def chat(client: AsyncOpenAI, messages: list[Any], **options: Any) -> Any:
    return await client.chat.completions.create(model="any", messages=messages, **{"max_tokens": 10, **options})


def named(rig: Rig, name: str) -> AsyncOpenAI:
    return rig.openai.with_options(base_url=f"{rig.url}/{name}/v1")


async def test_openai_chat_and_responses(rig: Rig) -> None:
    answer = await chat(rig.openai, [HI])
    assert (answer.model, answer.choices[0].message.role) == ((await rig.openai.models.list()).data[0].id, "assistant")
    assert answer.usage.completion_tokens <= 10
    parts = [chunk async for chunk in await chat(rig.openai, [HI], stream=True)]
    assert parts[-1].choices[0].finish_reason in ("stop", "length")
    response = await rig.openai.responses.create(model="any", input="hi", max_output_tokens=10)
    assert response.output_text is not None


async def test_anthropic(rig: Rig) -> None:
    async with AsyncAnthropic(base_url=rig.url, api_key="any", max_retries=0) as client:
        answer = await client.messages.create(model="any", max_tokens=10, messages=[HI])
        assert answer.role == "assistant"
        count = await client.messages.count_tokens(model="any", messages=[HI])
        cached = answer.usage.cache_read_input_tokens or 0
        assert count.input_tokens == answer.usage.input_tokens + cached
        assert (await client.models.list()).data[0].type == "model"


async def test_gemini(rig: Rig) -> None:
    client = genai.Client(api_key="any", http_options=gemini.HttpOptions(base_url=rig.url))
    config = gemini.GenerateContentConfig(max_output_tokens=10, top_p=0.9)
    answer = await client.aio.models.generate_content(model="any", contents="hi", config=config)
    assert answer.usage_metadata is not None
    await client.aio.aclose()


async def test_the_same_request_at_once_is_sampled_each_time(rig: Rig) -> None:
    answers = await asyncio.gather(*[chat(rig.openai, [HI], max_tokens=30) for _ in range(6)])
    assert len({answer.choices[0].message.content for answer in answers}) > 1


async def test_sampling_is_as_the_request_says(rig: Rig) -> None:
    greedy = [await chat(rig.openai, [HI], temperature=0, max_tokens=30) for _ in range(2)]
    assert len({answer.choices[0].message.content for answer in greedy}) == 1
    narrow = [await chat(rig.openai, [HI], top_p=1e-6, max_tokens=30) for _ in range(2)]
    assert narrow[0].choices[0].message.content == greedy[0].choices[0].message.content
    for wrong in ({"temperature": 7}, {"top_p": 0}):
        with pytest.raises(BadRequestError, match=next(iter(wrong))):
            await chat(rig.openai, [HI], **wrong)


async def test_a_prompt_too_long_is_refused_again_and_again(rig: Rig) -> None:
    for client in (rig.openai, named(rig, "long")):
        for _ in range(5):
            with pytest.raises(BadRequestError, match="maximum context length is 512"):
                await chat(client, [{"role": "user", "content": "x" * CONTEXT}])
        assert (await chat(client, [HI])).choices


async def test_a_named_session_is_recorded_token_by_token(
    process: LocalEngineProcess, first: Path, tmp_path: Path
) -> None:
    async with serving(process, first, record_to=tmp_path) as rig:
        client, messages = named(rig, "run-1"), [HI]
        for _ in range(3):
            answer = await chat(client, messages)
            messages = [*messages, answer.choices[0].message.model_dump(exclude_none=True), HI]
        await chat(rig.openai, [HI])
        status, closed = await rig.post("/sessions/run-1/close")
        assert (status, closed["session_id"], closed["calls"]) == (200, "run-1", 3)
        assert (await rig.post("/sessions/run-1/close"))[0] == 404
        await chat(named(rig, "run-2"), [HI])
    by_id = {group.group_id: group for group in read_groups(tmp_path / "served")}
    assert len(by_id) == 3
    (kept,) = by_id["run-1"].rollouts
    assert Path(closed["file"]).exists()
    assert (kept.status, kept.score.reward) == ("completed", None)
    assert len(list(kept.trace.paths())) == 1, "one conversation is one row"
    assert kept.trace.sampled_tokens == closed["sampled_tokens"]
    assert "run-2" in by_id, "what is open at the end is recorded too"


async def test_nothing_is_recorded_unless_asked(rig: Rig, tmp_path: Path) -> None:
    await chat(named(rig, "quiet"), [HI])
    _status, closed = await rig.post("/sessions/quiet/close")
    assert (closed["calls"], closed["file"]) == (1, "")


async def test_an_idle_session_ends_by_itself(process: LocalEngineProcess, first: Path, tmp_path: Path) -> None:
    async with serving(process, first, record_to=tmp_path, session_idle_s=0.2) as rig:
        await chat(named(rig, "brief"), [HI])
        await until(lambda: list((tmp_path / "served" / "rollouts").glob("*brief*")))
        assert (await rig.post("/sessions/brief/close"))[0] == 404
        await chat(named(rig, "brief"), [HI])


async def test_a_name_that_is_none_is_refused(rig: Rig) -> None:
    for name in ("a%20b", "x" * 70, "-x"):
        status, _answer = await rig.post(f"/{name}/v1/chat/completions", {"model": "m", "messages": [HI]})
        assert status in (400, 404), name


async def test_unknown_paths_are_not_found(rig: Rig) -> None:
    for path in ("/v1/nothing", "/nothing", "/v1/load_lora_adapter"):
        assert (await rig.post(path, {}))[0] == 404
