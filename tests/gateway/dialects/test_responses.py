"""The Responses dialect, spoken by the official client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from longrein.engines.scripted import Fault
from longrein.errors import EngineError
from longrein.types import I32, Message
from tests.gateway.rig import BASH, assert_exact, renderer, rig, run_bash, say

SEALED: Any = "reasoning.encrypted_content"
TOOL: Any = {"type": "function", **BASH["function"], "strict": False}
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
THOUGHT = [
    "response.output_item.added",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done",
    "response.output_item.done",
]
TEXT = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
CALL = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


def thinking(thought: str, text: str, *commands: str) -> I32:
    calls = [
        f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': one}})}</tool_call>" for one in commands
    ]
    return renderer().encode(f"<think>{thought}</think>{text}{''.join(calls)}<|im_end|>")


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    passing = ("id", "created_at", "completed_at", "call_id")
    output = [{key: value for key, value in item.items() if key not in passing} for item in response["output"]]
    return {**{key: value for key, value in response.items() if key not in passing}, "output": output}


async def test_answer_and_usage_are_what_the_engine_said() -> None:
    async with rig([say("hello é")]) as r, r.client() as client:
        raw = await client.responses.with_raw_response.create(
            model="policy", input="go", instructions="be good", tools=[TOOL], temperature=0.5, metadata={"a": "b"}
        )
        answer = Response.model_validate(json.loads(raw.content))
        assert answer.output_text == "hello é" and answer.status == "completed" and answer.object == "response"
        assert answer.model == "policy" and answer.instructions == "be good" and answer.metadata == {"a": "b"}
        assert answer.tools[0].to_dict() == TOOL and answer.tool_choice == "auto" and answer.temperature == 0.5
        call = r.trace().calls[0]
        assert answer.usage is not None
        assert answer.usage.output_tokens == call.completion.token_ids.size
        assert answer.usage.input_tokens == r.engine.requests[0].prompt_ids.size
        assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
        assert call.delivered and call.dialect == "responses"
        assert [message["role"] for message in call.messages] == ["system", "user"]
        assert call.tools == (BASH,)


async def test_stream_is_the_same_answer_in_the_order_that_openai_sends_it() -> None:
    turn = thinking("look", "let me see", "ls", "pwd")
    async with rig([turn, turn]) as r, r.client() as client:
        stream = await client.responses.create(model="policy", input="go", tools=[TOOL], stream=True)
        events = [EVENT.validate_python(event.to_dict()) async for event in stream]
        begin = ["response.created", "response.in_progress"]
        assert [event.type for event in events] == [*begin, *THOUGHT, *TEXT, *CALL, *CALL, "response.completed"]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.output_index for event in events if event.type == "response.output_item.done"] == [0, 1, 2, 3]
        assert r.trace().calls[0].delivered
        done = events[-1]
        assert done.type == "response.completed"
        items = [event.item for event in events if event.type == "response.output_item.done"]
        assert items == done.response.output
        whole = await client.responses.create(model="policy", input="go", tools=[TOOL])
        assert without_ids(whole.to_dict()) == without_ids(done.response.to_dict())


async def test_stream_helper_builds_the_response_up() -> None:
    async with rig([thinking("look", "let me see", "ls")]) as r, r.client() as client:
        async with client.responses.stream(model="policy", input="go", tools=[TOOL]) as stream:
            seen = [event async for event in stream]
            answer = await stream.get_final_response()
        assert answer.output_text == "let me see"
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
        snapshots = [event.snapshot for event in seen if event.type == "response.function_call_arguments.delta"]
        assert [json.loads(text) for text in snapshots] == [{"command": "ls"}]
        assert r.trace().calls[0].delivered


async def test_the_client_without_asyncio() -> None:
    async with rig([say("one"), say("two")]) as r:

        def ask() -> list[str]:
            with OpenAI(base_url=f"{r.endpoint.base_url}/v1", api_key="any", max_retries=0) as client:
                whole = client.responses.create(model="policy", input="go").output_text
                with client.responses.stream(model="policy", input="go") as stream:
                    return [whole, stream.get_final_response().output_text]

        assert await asyncio.to_thread(ask) == ["one", "two"]


async def test_tool_turns_with_parallel_calls_stay_on_one_branch() -> None:
    turns = [thinking("first", "", "ls", "pwd"), thinking("then", "look", "cat a"), say("done")]
    async with rig(turns) as r, r.client() as client:
        items: list[Any] = [{"role": "developer", "content": "be good"}, {"role": "user", "content": "go"}]
        for _ in turns:
            answer = await client.responses.create(model="policy", input=items, tools=[TOOL], include=[SEALED])
            items += [item.to_dict() for item in answer.output]
            items += [
                {"type": "function_call_output", "call_id": item.call_id, "output": f"out of {item.call_id}"}
                for item in answer.output
                if item.type == "function_call"
            ]
        trace = r.trace()
        assert [call.parent_id for call in trace.calls] == [None, 0, 1]
        assert [message["role"] for message in trace.calls[1].messages] == ["tool", "tool"]
        assert trace.delivered_token_fraction == 1.0
        assert_exact(trace, r.engine)


async def test_thoughts_are_reasoning_items_and_come_back_in_any_form() -> None:
    async with rig([thinking(" Hm.\n", "Yes.")]) as r, r.client() as client:
        answer = await client.responses.create(model="policy", input="go", include=[SEALED])
        thought, text = answer.output
        assert thought.type == "reasoning" and "Hm." in thought.summary[0].text and thought.encrypted_content
        assert answer.output_text == "Yes."
        plain = await client.responses.create(model="policy", input="go")
        assert plain.output[0].type == "reasoning" and plain.output[0].encrypted_content is None
        summary = [{"type": "summary_text", "text": thought.summary[0].text}]
        content = [{"type": "reasoning_text", "text": thought.summary[0].text}]
        echoes: list[list[dict[str, Any]]] = [
            [thought.to_dict(), text.to_dict()],
            [{"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}, text.to_dict()],
            [{"type": "reasoning", "summary": summary, "encrypted_content": "theirs"}, text.to_dict()],
            [{"type": "reasoning", "summary": [], "content": content}, {"role": "assistant", "content": "Yes."}],
            [text.to_dict()],
        ]
        for number, echo in enumerate(echoes):
            items: Any = [{"role": "user", "content": "go"}, *echo, {"role": "user", "content": f"more {number}"}]
            await client.responses.create(model="policy", input=items)
            assert r.trace().calls[-1].parent_id == 1, number
        assert_exact(r.trace(), r.engine)


async def test_cut_completion_is_incomplete() -> None:
    async with rig([say("a long answer that is cut")]) as r, r.client() as client:
        answer = await client.responses.create(model="policy", input="go", max_output_tokens=6)
        assert answer.status == "incomplete" and answer.output_text == "a long"
        assert answer.incomplete_details is not None and answer.incomplete_details.reason == "max_output_tokens"
        assert answer.output[0].type == "message" and answer.output[0].status == "incomplete"
        assert r.trace().calls[0].asked == {"max_output_tokens": 6}
        async with client.responses.stream(model="policy", input="go", max_output_tokens=6) as stream:
            seen = [event async for event in stream]
        assert seen[-1].type == "response.incomplete"


async def test_wishes_are_recorded_and_the_run_decides() -> None:
    wishes: dict[str, Any] = {
        "temperature": 0.1,
        "top_p": 0.5,
        "max_output_tokens": 99,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "high"},
        "truncation": "auto",
        "text": {"verbosity": "low"},
    }
    silent: dict[str, Any] = {"store": True, "prompt_cache_key": "k", "metadata": {"a": "b"}, "user": "u"}
    async with rig([say("x")], temperature=0.7, max_tokens=50) as r, r.client() as client:
        tools: Any = [TOOL, {"type": "web_search"}]
        answer = await client.responses.create(model="policy", input="go", tools=tools, **wishes, **silent)
        sampling = r.engine.requests[0].sampling
        assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.7, 1.0, 50)
        call = r.trace().calls[0]
        assert call.asked == {**wishes, "hosted_tools": ["web_search"]}
        assert call.tools == (BASH,) and len(answer.tools) == 2


async def test_errors_are_the_clients_own() -> None:
    async with rig([say("x")], context_length=64) as r, r.client() as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model="policy", input="y" * 100, stream=stream)
            assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="policy", input="y", previous_response_id="resp_1")
        assert caught.value.code == "previous_response_not_found"
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_1")
        record = await r.gateway.close_session("s")
        assert record.truncated and record.failure is None and not record.trace.calls
        with pytest.raises(openai.AuthenticationError):
            await client.responses.create(model="policy", input="y")


async def test_engine_failure_is_a_503_or_a_failed_response() -> None:
    async with rig([Fault(error=EngineError("gone"))]) as r, r.client() as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model="policy", input="go")
        assert caught.value.status_code == 503
    async with rig([Fault(error=EngineError("gone"))]) as r, r.client() as client:
        stream = await client.responses.create(model="policy", input="go", stream=True)
        seen: list[ResponseStreamEvent] = []
        with pytest.raises(openai.APIError, match="the engine failed"):
            async for event in stream:
                seen.append(EVENT.validate_python(event.to_dict()))
        assert [event.type for event in seen] == ["response.created", "response.failed"]
        failed = seen[-1]
        assert failed.type == "response.failed" and failed.response.status == "failed"
        assert failed.response.error is not None and failed.response.error.code == "server_error"


async def test_counting_and_models() -> None:
    async with rig([say("x")]) as r, r.client() as client:
        counted = await client.responses.input_tokens.count(model="policy", input="go", tools=[TOOL])
        assert not r.trace().calls
        answer = await client.responses.create(model="policy", input="go", tools=[TOOL])
        assert answer.usage is not None and counted.input_tokens == answer.usage.input_tokens
        assert [model.id async for model in client.models.list()] == ["policy"]


async def test_both_openai_dialects_reach_the_same_conversation() -> None:
    async with rig([run_bash("ls"), say("done")]) as r, r.client() as client:
        user: Message = {"role": "user", "content": "go"}
        reply = await client.chat.completions.create(model="policy", messages=[user], tools=[BASH])
        call = (reply.choices[0].message.tool_calls or [])[0]
        assert call.type == "function"
        items: Any = [
            user,
            {"type": "function_call", "call_id": call.id, "name": "bash", "arguments": call.function.arguments},
            {"type": "function_call_output", "call_id": call.id, "output": [{"type": "input_text", "text": "a"}]},
        ]
        await client.responses.create(model="policy", input=items, tools=[TOOL])
        assert [one.parent_id for one in r.trace().calls] == [None, 0]
        assert_exact(r.trace(), r.engine)
