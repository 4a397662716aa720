"""The Gemini dialect, spoken by Google's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest
from google import genai
from google.genai import errors, types

from longrein.engines.scripted import Delay, Fault
from longrein.errors import EngineError
from longrein.types import I32, Message
from tests.gateway.held import held
from tests.gateway.rig import BASH, Rig, assert_exact, renderer, rig, run_bash, say, until

PARAMETERS = BASH["function"]["parameters"]
TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(name="bash", description="Run a command", parameters_json_schema=PARAMETERS)
    ]
)
# The client's own, on aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
THOUGHTS = types.ThinkingConfig(include_thoughts=True)


@asynccontextmanager
async def client_of(r: Rig, **options: Any) -> AsyncIterator[genai.Client]:
    base: dict[str, Any] = {"base_url": r.endpoint.base_url}
    client = genai.Client(api_key=r.endpoint.api_key, http_options=types.HttpOptions(**{**base, **options}))
    try:
        yield client
    finally:
        await client.aio.aclose()
        client.close()


def config(**fields: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(**fields)


def thinking(message: Message, thought: str) -> I32:
    return np.concatenate([renderer().encode(f"<think>{thought}</think>"), renderer().encode_reply(message)])


def parts_of(answer: types.GenerateContentResponse) -> list[types.Part]:
    assert answer.candidates and answer.candidates[0].content and answer.candidates[0].content.parts
    return answer.candidates[0].content.parts


def finish_of(answer: types.GenerateContentResponse) -> types.FinishReason | None:
    assert answer.candidates
    return answer.candidates[0].finish_reason


async def test_answer_and_usage_are_what_the_engine_said() -> None:
    async with rig([say("hello é")]) as r, client_of(r) as client:
        answer = await client.aio.models.generate_content(model="policy", contents="go")
        assert answer.text == "hello é" and finish_of(answer) == types.FinishReason.STOP
        assert answer.model_version == "policy" and answer.response_id
        call = r.trace().calls[0]
        usage = answer.usage_metadata
        assert usage is not None
        assert usage.prompt_token_count == r.engine.requests[0].prompt_ids.size
        assert usage.candidates_token_count == call.completion.token_ids.size
        assert usage.total_token_count == r.engine.requests[0].prompt_ids.size + call.completion.token_ids.size
        assert call.delivered and call.dialect == "gemini" and call.messages == ({"role": "user", "content": "go"},)


async def test_stream_gives_the_same_answer_in_pieces() -> None:
    turn = thinking(run_bash("ls", "let me look"), "hm")
    async with rig([turn]) as r, client_of(r) as client:
        stream = await client.aio.models.generate_content_stream(
            model="policy", contents="go", config=config(tools=[TOOL], thinking_config=THOUGHTS)
        )
        chunks = [chunk async for chunk in stream]
        thought, text, call = [part for chunk in chunks for part in parts_of(chunk)]
        assert thought.thought and (thought.text or "").strip() == "hm"
        assert not text.thought and (text.text or "").strip() == "let me look"
        assert call.function_call and call.function_call.name == "bash" and call.function_call.args == {"command": "ls"}
        assert call.thought_signature and call.function_call.id
        assert [finish_of(chunk) for chunk in chunks] == [None, None, types.FinishReason.STOP]
        assert chunks[-1].usage_metadata and chunks[-1].usage_metadata.candidates_token_count
        assert r.trace().calls[0].delivered


async def test_tool_runner_stays_on_one_branch() -> None:
    ran: list[str] = []

    def bash(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return f"out of {command}"

    turns = [thinking(run_bash("ls"), "first"), run_bash("cat a", "look"), say("done"), say("bye")]
    async with rig(turns) as r, client_of(r) as client:
        chat = client.aio.chats.create(
            model="policy", config=config(tools=[bash], system_instruction="be good", thinking_config=THOUGHTS)
        )
        assert (await chat.send_message("go")).text == "done"
        assert ran == ["ls", "cat a"]
        assert "".join([chunk.text or "" async for chunk in await chat.send_message_stream("more")]) == "bye"
        trace = r.trace()
        assert [call.parent_id for call in trace.calls] == [None, 0, 1, 2]
        assert trace.delivered_token_fraction == 1.0
        assert trace.calls[1].messages[0]["content"] == "out of ls"
        assert trace.calls[0].tools[0]["function"]["parameters"]["properties"]["command"]["type"] == "string"
        assert_exact(trace, r.engine)


async def test_streamed_history_stays_on_one_branch() -> None:
    """A streaming chat keeps each chunk as a content of its own."""
    turns = [thinking(run_bash("ls", "look"), "first"), say("done")]
    async with rig(turns) as r, client_of(r) as client:
        chat = client.aio.chats.create(model="policy", config=config(tools=[TOOL], thinking_config=THOUGHTS))
        chunks = [chunk async for chunk in await chat.send_message_stream("go")]
        [call] = [part.function_call for chunk in chunks for part in parts_of(chunk) if part.function_call]
        result = types.FunctionResponse(id=call.id, name=call.name, response={"output": "a b"})
        chunks = [chunk async for chunk in await chat.send_message_stream(types.Part(function_response=result))]
        assert "".join(chunk.text or "" for chunk in chunks) == "done"
        assert len(chat.get_history()) > 4
        trace = r.trace()
        assert [call.parent_id for call in trace.calls] == [None, 0]
        assert trace.calls[1].messages == ({"role": "tool", "name": "bash", "tool_call_id": call.id, "content": "a b"},)
        assert_exact(trace, r.engine)


@pytest.mark.parametrize("kept", ["ids", "signatures", "neither"])
async def test_parallel_calls_come_back_with_or_without_their_ids(kept: str) -> None:
    both = run_bash("ls")
    both["tool_calls"] = both["tool_calls"] * 2
    async with rig([both, say("done")]) as r, client_of(r) as client:
        contents: list[types.Content] = [types.UserContent("go")]
        answer = await client.aio.models.generate_content(
            model="policy", contents=list(contents), config=config(tools=[TOOL])
        )
        results: list[types.Part] = []
        for number, part in enumerate(parts_of(answer)):
            assert part.function_call is not None
            if kept != "ids":
                part.function_call.id = None
            if kept == "neither":
                part.thought_signature = None
            results.append(
                types.Part(
                    function_response=types.FunctionResponse(
                        id=part.function_call.id, name="bash", response={"output": str(number)}
                    )
                )
            )
        contents += [types.Content(role="model", parts=parts_of(answer)), types.Content(role="user", parts=results)]
        await client.aio.models.generate_content(model="policy", contents=list(contents), config=config(tools=[TOOL]))
        trace = r.trace()
        assert [call.parent_id for call in trace.calls] == [None, 0]
        assert [message["content"] for message in trace.calls[1].messages] == ["0", "1"]
        ids = [call["id"] for call in trace.calls[0].reply["tool_calls"]]
        if kept != "neither":
            assert [message["tool_call_id"] for message in trace.calls[1].messages] == ids
        assert_exact(trace, r.engine)


async def test_a_rewritten_echo_is_known_by_its_signature() -> None:
    """Without an id, an agent that changed the arguments it echoes is still found."""
    async with rig([run_bash("ls"), say("done")]) as r, client_of(r) as client:
        answer = await client.aio.models.generate_content(model="policy", contents="go", config=config(tools=[TOOL]))
        [part] = parts_of(answer)
        part.function_call = types.FunctionCall(name="bash", args={"command": "ls", "timeout": None})
        result = types.Part.from_function_response(name="bash", response={"output": "a"})
        await client.aio.models.generate_content(
            model="policy",
            contents=[types.UserContent("go"), types.ModelContent(part), types.UserContent(result)],
            config=config(tools=[TOOL]),
        )
        assert [call.parent_id for call in r.trace().calls] == [None, 0]


async def test_synchronous_client() -> None:
    turns = [say("one"), say("two"), say("x" * 50)]
    async with rig(turns) as r, client_of(r) as client:

        def talk() -> tuple[str, str]:
            whole = client.models.generate_content(model="policy", contents="go").text
            chunks = client.models.generate_content_stream(model="policy", contents="on")
            return whole or "", "".join(chunk.text or "" for chunk in chunks)

        assert await asyncio.to_thread(talk) == ("one", "two")
        cut = await client.aio.models.generate_content(
            model="policy", contents="go", config=config(max_output_tokens=4, temperature=0.1)
        )
        assert cut.text == "xxxx" and finish_of(cut) == types.FinishReason.MAX_TOKENS
        assert r.trace().calls[2].asked == {"temperature": 0.1, "maxOutputTokens": 4}
        assert r.engine.requests[2].sampling.temperature == 1.0


async def test_stop_strings() -> None:
    async with rig([say("one STOP two")]) as r, client_of(r) as client:
        answer = await client.aio.models.generate_content(
            model="policy", contents="go", config=config(stop_sequences=["STOP"])
        )
        assert answer.text == "one " and finish_of(answer) == types.FinishReason.STOP


async def test_count_and_models() -> None:
    async with rig([say("x")]) as r, client_of(r) as client:
        counted = await client.aio.models.count_tokens(model="policy", contents="go")
        await client.aio.models.generate_content(model="policy", contents="go")
        assert counted.total_tokens == r.engine.requests[0].prompt_ids.size
        assert len(r.trace().calls) == 1
        shown = await client.aio.models.get(model="policy")
        assert (shown.name, shown.input_token_limit) == ("models/policy", 8192)
        assert [model.name async for model in await client.aio.models.list()] == ["models/policy"]
        assert (await client.aio.models.get(model="qwen3:4b")).name == "models/policy"
        url = f"{r.endpoint.base_url}/v1/models/policy:countTokens"
        whole = {"model": "models/policy", "contents": [{"parts": [{"text": "go"}]}]}
        async with (
            aiohttp.ClientSession() as http,
            http.post(url, json={"generateContentRequest": whole}) as response,
        ):
            assert await response.json() == {"totalTokens": counted.total_tokens}


async def test_errors_are_googles() -> None:
    async with rig([say("x")], context_length=64) as r, client_of(r) as client:
        for stream in (False, True):
            with pytest.raises(errors.ClientError) as caught:
                await ask(client, "y" * 100, stream=stream)
            assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
            assert "The input token count (" in str(caught.value.message)
            assert "exceeds the maximum number of tokens allowed (64)" in str(caught.value.message)
        with pytest.raises(errors.ClientError) as caught:
            await client.aio.models.generate_content(
                model="policy", contents="go", config=config(response_mime_type="application/json")
            )
        assert "responseMimeType" in str(caught.value.message)
        with pytest.raises(errors.ClientError) as caught:
            await client.aio.models.embed_content(model="policy", contents="go")
        assert (caught.value.code, caught.value.status) == (405, "UNIMPLEMENTED")
        async with client_of(r, base_url=f"http://127.0.0.1:{r.endpoint.port}") as bare:
            assert [model.name async for model in await bare.aio.models.list()] == ["models/policy"]
        stranger = genai.Client(
            api_key="x", http_options=types.HttpOptions(base_url=f"http://127.0.0.1:{r.endpoint.port}")
        )
        with pytest.raises(errors.ClientError) as caught:
            await stranger.aio.models.get(model="policy")
        assert (caught.value.code, caught.value.status) == (401, "UNAUTHENTICATED")
        await stranger.aio.aclose()


async def ask(client: genai.Client, contents: str, *, stream: bool) -> str:
    if not stream:
        return (await client.aio.models.generate_content(model="policy", contents=contents)).text or ""
    chunks = await client.aio.models.generate_content_stream(model="policy", contents=contents)
    return "".join([chunk.text or "" async for chunk in chunks])


@pytest.mark.parametrize("stream", [False, True])
async def test_failed_engine_is_a_server_error(stream: bool) -> None:
    failing = [Delay(seconds=0.05), Fault(error=EngineError("boom"))]
    async with rig(failing, keep_alive_s=0.01) as r, client_of(r) as client:
        with pytest.raises(errors.ServerError) as caught:
            await ask(client, "go", stream=stream)
        assert (caught.value.code, caught.value.status) == (503, "UNAVAILABLE")


async def test_waiting_stream_gets_headers_at_once_and_white_space() -> None:
    async with held(say("slow"), keep_alive_s=0.02) as (r, script), client_of(r) as client:
        asking = asyncio.create_task(ask(client, "go", stream=True))
        await until(lambda: script.asked == 1)
        url = f"{r.endpoint.base_url}/v1beta/models/policy:streamGenerateContent?alt=sse"
        async with aiohttp.ClientSession() as http, http.post(url, json=contents_of("on")) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            text = (await response.content.readexactly(3)).decode()
            script.go.set()
            text += await response.text()
        assert await asking == "slow", "the official client does not mind"
        waiting, _, rest = text.partition("data: ")
        assert waiting.count("\n") >= 3 and not waiting.strip()
        assert json.loads(rest)["candidates"][0]["content"]["parts"] == [{"text": "answer 2"}]


async def test_key_in_the_query_and_a_stream_that_is_an_array() -> None:
    async with rig([say("x")]) as r, aiohttp.ClientSession() as http:
        base = f"http://127.0.0.1:{r.endpoint.port}/v1beta/models/policy:streamGenerateContent"
        async with http.post(f"{base}?key={r.endpoint.api_key}", json=contents_of("go")) as response:
            [chunk] = await response.json()
            assert chunk["candidates"][0]["finishReason"] == "STOP"
        async with http.get(f"{base}?key={r.endpoint.api_key}") as response:
            assert response.status == 405 and (await response.json())["error"]["status"] == "UNIMPLEMENTED"


async def test_bad_requests_leave_the_session_as_it_was() -> None:
    async with rig([say("fine")]) as r, aiohttp.ClientSession() as http:
        url = f"{r.endpoint.base_url}/v1beta/models/policy:generateContent"
        deep = '{"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {"a": '
        deep += "[" * 900 + "]" * 900 + "}}}]}]}"
        declared = '{"contents": [{"parts": [{"text": "x"}]}], "tools": [{"functionDeclarations": [{"name": "f", '
        declared += '"parameters": ' + '{"items": ' * 900 + "{}" + "}" * 900 + "}]}]}"
        for body in ("{nonsense", "[]", declared):
            async with http.post(url, data=body) as response:
                answer = await response.json()
                assert (response.status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT"), body[:50]
        async with http.post(url, data=deep) as response:
            assert response.status == 200
        record = await r.gateway.close_session("s")
        assert record.failure is None and len(record.trace.calls) == 1 and record.counters["refused"] == 3


def contents_of(text: str) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": text}]}]}
