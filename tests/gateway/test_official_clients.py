"""Final answers and failures, as official clients understand them: streamed, whole, and by their helpers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors

from longrein.engines.scripted import Fault
from longrein.errors import EngineError
from tests.gateway.rig import USER, Rig, rig, say

# Google's client, on aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
GONE = Fault(error=EngineError("the engine burnt down"))
RETRIES = 3


async def chat(r: Rig) -> tuple[str, Any]:
    async with openai.AsyncOpenAI(
        base_url=f"{r.endpoint.base_url}/v1", api_key=r.endpoint.api_key, max_retries=RETRIES
    ) as client:
        reply = await client.chat.completions.create(model="policy", messages=[USER])
        return reply.choices[0].message.content or "", reply.choices[0].finish_reason


async def chat_stream(r: Rig) -> tuple[str, Any]:
    async with (
        openai.AsyncOpenAI(
            base_url=f"{r.endpoint.base_url}/v1", api_key=r.endpoint.api_key, max_retries=RETRIES
        ) as client,
        client.chat.completions.stream(model="policy", messages=[USER]) as stream,
    ):
        reply = await stream.get_final_completion()
        return reply.choices[0].message.content or "", reply.choices[0].finish_reason


async def responses(r: Rig) -> tuple[str, Any]:
    async with openai.AsyncOpenAI(
        base_url=f"{r.endpoint.base_url}/v1", api_key=r.endpoint.api_key, max_retries=RETRIES
    ) as client:
        reply = await client.responses.create(model="policy", input="go")
        return reply.output_text, reply.status


async def responses_stream(r: Rig) -> tuple[str, Any]:
    async with (
        openai.AsyncOpenAI(
            base_url=f"{r.endpoint.base_url}/v1", api_key=r.endpoint.api_key, max_retries=RETRIES
        ) as client,
        client.responses.stream(model="policy", input="go") as stream,
    ):
        reply = await stream.get_final_response()
        return reply.output_text, reply.status


async def messages(r: Rig) -> tuple[str, Any]:
    async with anthropic.AsyncAnthropic(
        base_url=r.endpoint.base_url, api_key=r.endpoint.api_key, max_retries=RETRIES
    ) as client:
        reply = await client.messages.create(
            model="policy", max_tokens=99, messages=[{"role": "user", "content": "go"}]
        )
        return getattr(reply.content[0], "text", ""), reply.stop_reason


async def messages_stream(r: Rig) -> tuple[str, Any]:
    async with (
        anthropic.AsyncAnthropic(
            base_url=r.endpoint.base_url, api_key=r.endpoint.api_key, max_retries=RETRIES
        ) as client,
        client.messages.stream(model="policy", max_tokens=99, messages=[{"role": "user", "content": "go"}]) as stream,
    ):
        reply = await stream.get_final_message()
        return getattr(reply.content[0], "text", ""), reply.stop_reason


async def gemini(r: Rig) -> tuple[str, Any]:
    client = genai.Client(api_key=r.endpoint.api_key, http_options={"base_url": r.endpoint.base_url})
    try:
        reply = await client.aio.models.generate_content(model="policy", contents="go")
        return reply.text or "", reply.candidates and reply.candidates[0].finish_reason
    finally:
        await client.aio.aclose()
        client.close()


async def gemini_stream(r: Rig) -> tuple[str, Any]:
    client = genai.Client(api_key=r.endpoint.api_key, http_options={"base_url": r.endpoint.base_url})
    text, finish = "", None
    try:
        async for chunk in await client.aio.models.generate_content_stream(model="policy", contents="go"):
            text += chunk.text or ""
            finish = chunk.candidates[0].finish_reason if chunk.candidates else finish
    finally:
        await client.aio.aclose()
        client.close()
    return text, finish


Client = Callable[[Rig], Awaitable[tuple[str, Any]]]
CLIENTS: tuple[Client, ...] = (
    *(chat, chat_stream, responses, responses_stream),
    *(messages, messages_stream, gemini, gemini_stream),
)
by_every_client = pytest.mark.parametrize("ask", CLIENTS, ids=lambda ask: ask.__name__)


@by_every_client
async def test_final_answer_is_an_answer_like_any_other(ask: Client) -> None:
    async with rig([say("one")], max_calls=1) as r:
        text, finish = await ask(r)
        assert text == "one"
        final = await ask(r)
        assert final == ("The call limit of this session is reached; the session ends here.", finish)
        assert (await r.gateway.close_session("s")).truncated


@by_every_client
async def test_failed_engine_is_an_error_that_nobody_retries(ask: Client) -> None:
    async with rig([GONE]) as r:
        refused = r.gateway._keys.session("s").counters
        for number in (1, 2):
            with pytest.raises((openai.APIError, anthropic.APIError, errors.APIError)):
                await ask(r)
            assert refused["refused"] == number
        assert len(r.engine.requests) == 3
