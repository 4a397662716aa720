"""The chat dialect, spoken by the official client."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI

from longrein.engines.scripted import Delay, Fault
from longrein.errors import EngineError
from longrein.types import Message
from tests.gateway.held import held
from tests.gateway.rig import BASH, PATIENCE_S, USER, assert_exact, renderer, rig, run_bash, say, until


async def test_answer_and_usage_are_what_the_engine_said() -> None:
    async with rig([say("hello é")]) as r, r.client() as client:
        reply = await client.chat.completions.create(model="policy", messages=[USER])
        assert reply.choices[0].message.content == "hello é"
        assert reply.choices[0].finish_reason == "stop"
        call = r.trace().calls[0]
        assert reply.usage is not None
        assert reply.usage.completion_tokens == call.completion.token_ids.size
        assert reply.usage.prompt_tokens == r.engine.requests[0].prompt_ids.size
        assert call.delivered and call.branch_reason == "first"


async def test_stream_gives_the_same_answer_in_pieces() -> None:
    async with rig([run_bash("ls", "let me look")]) as r, r.client() as client:
        stream = await client.chat.completions.create(
            model="policy", messages=[USER], tools=[BASH], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert deltas[0].role == "assistant"
        assert "".join(delta.content or "" for delta in deltas) == "let me look"
        calls = [call for delta in deltas for call in delta.tool_calls or []]
        assert calls[0].function is not None and calls[0].id
        assert json.loads(calls[0].function.arguments or "") == {"command": "ls"}
        assert chunks[-2].choices[0].finish_reason == "tool_calls"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == r.trace().calls[0].completion.token_ids.size
        assert r.trace().calls[0].delivered


async def test_usage_chunk_only_when_asked_for() -> None:
    async with rig([say("a")]) as r, r.client() as client:
        stream = await client.chat.completions.create(model="policy", messages=[USER], stream=True)
        chunks = [chunk async for chunk in stream]
        assert all(chunk.usage is None and chunk.choices for chunk in chunks)


async def test_tool_turns_stay_on_one_branch() -> None:
    turns = [run_bash("ls"), run_bash("cat a", "look"), say("done")]
    async with rig(turns) as r, r.client() as client:
        messages: list[Message] = [{"role": "system", "content": "be good"}, USER]
        for _ in turns:
            reply = await client.chat.completions.create(model="policy", messages=messages, tools=[BASH])
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": f"out of {call.id}"}
                for call in message.tool_calls or []
            ]
        trace = r.trace()
        assert [call.parent_id for call in trace.calls] == [None, 0, 1]
        assert trace.delivered_token_fraction == 1.0
        assert_exact(trace, r.engine)
        ids = {call["id"] for c in trace.calls for call in c.reply.get("tool_calls", [])}
        assert len(ids) == 2


async def test_cut_completion_says_length_and_is_still_extended() -> None:
    async with rig([say("a long answer that is cut"), say("ok")]) as r, r.client() as client:
        cut = await client.chat.completions.create(model="policy", messages=[USER], max_tokens=6)
        assert cut.choices[0].finish_reason == "length" and cut.choices[0].message.content == "a long"
        more = [USER, say("a long"), {"role": "user", "content": "on"}]
        await client.chat.completions.create(model="policy", messages=more)
        trace = r.trace()
        assert [call.parent_id for call in trace.calls] == [None, 0]
        assert_exact(trace, r.engine)
        delta = renderer().decode(trace.calls[1].prompt_delta)
        assert delta == "<|im_end|>\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n"


async def test_a_run_that_judges_may_cut_the_distribution() -> None:
    async with rig([say("one")], top_p=0.9, top_k=40, min_p=0.1) as r, r.client() as client:
        await client.chat.completions.create(model="policy", messages=[USER], top_p=0.5)
        sampling = r.engine.requests[0].sampling
        assert (sampling.top_p, sampling.top_k, sampling.min_p) == (0.9, 40, 0.1)


async def test_run_decides_sampling_and_the_agents_wishes_are_recorded() -> None:
    async with rig([say("one STOP two")], temperature=0.7, max_tokens=50) as r, r.client() as client:
        reply = await client.chat.completions.create(
            model="policy", messages=[USER], temperature=0.1, top_p=0.5, max_tokens=99, stop=["STOP"], seed=3
        )
        sampling = r.engine.requests[0].sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.7, 1.0, 0, 0.0)
        assert sampling.max_tokens == 50 and sampling.stop == ("STOP",)
        assert reply.choices[0].message.content == "one "
        asked = {"temperature": 0.1, "top_p": 0.5, "max_tokens": 99, "stop": ["STOP"], "seed": 3}
        assert r.trace().calls[0].asked == asked


async def test_max_tokens_is_clamped_to_the_room_left() -> None:
    prompt = renderer().render((USER,), ()).size
    async with rig([say("x" * 100)], context_length=prompt + 10, max_tokens=500) as r, r.client() as client:
        reply = await client.chat.completions.create(model="policy", messages=[USER])
        assert reply.choices[0].finish_reason == "length"
        assert r.engine.requests[0].sampling.max_tokens == 10


async def test_over_long_context_is_openais_error_and_truncates_the_session() -> None:
    async with rig([say("x")], context_length=64) as r, r.client() as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": "y" * 100}], stream=stream
                )
            assert caught.value.code == "context_length_exceeded"
            assert "maximum context length is 64 tokens" in caught.value.message
        record = await r.gateway.close_session("s")
        assert record.truncated and record.failure is None and not record.trace.calls


async def test_call_limit_ends_the_agent_with_an_answer_nobody_sampled() -> None:
    async with rig([say("x")], max_calls=1) as r, r.client() as client:
        await client.chat.completions.create(model="policy", messages=[USER])
        again = await client.chat.completions.create(model="policy", messages=[USER])
        assert again.choices[0].finish_reason == "stop" and "call limit" in (again.choices[0].message.content or "")
        record = await r.gateway.close_session("s")
        assert record.truncated and record.counters["not_sampled"] == 1 and len(record.trace.calls) == 1


async def test_engine_faults_are_retried_then_503_and_a_failure() -> None:
    fault = Fault(error=EngineError("gone"))
    async with rig([fault, fault, say("back")]) as r, r.client() as client:
        reply = await client.chat.completions.create(model="policy", messages=[USER])
        assert reply.choices[0].message.content == "back"
        record = await r.gateway.close_session("s")
        assert record.failure is None and record.counters["engine_retries"] == 2
    async with rig([fault]) as r, r.client() as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="policy", messages=[USER])
        assert caught.value.status_code == 503
        with pytest.raises(openai.APIError):
            stream = await client.chat.completions.create(model="policy", messages=[USER], stream=True)
            [chunk async for chunk in stream]
        record = await r.gateway.close_session("s")
        assert record.failure is not None and record.failure.kind == "engine" and not record.trace.calls


async def test_models_route() -> None:
    async with rig([]) as r, r.client() as client:
        assert [model.id async for model in client.models.list()] == ["policy"]


async def test_key_alone_and_prefix_alone_suffice_and_wrong_ones_do_not() -> None:
    async with rig([say("x")]) as r:
        bare = r.bare_url.removesuffix("/chat/completions")
        good = [(r.endpoint.base_url + "/v1", "nonsense"), (bare, r.endpoint.api_key)]
        bad = [(bare, "nonsense"), (f"http://127.0.0.1:{r.endpoint.port}/nonsense/v1", r.endpoint.api_key)]
        for base_url, key in good:
            async with AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
                await client.chat.completions.create(model="policy", messages=[USER])
        for base_url, key in bad:
            async with AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.chat.completions.create(model="policy", messages=[USER])
        assert r.gateway.counters == {"wrong_key": 2}


async def test_key_dies_with_its_session() -> None:
    async with rig([say("x")]) as r, r.client() as client:
        await r.gateway.close_session("s")
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="policy", messages=[USER])
        assert r.engine.forgotten == ["s"]


async def test_closing_a_session_cancels_its_calls() -> None:
    async with rig([Delay(seconds=3600), say("late")]) as r, r.client() as client:
        asking = asyncio.create_task(client.chat.completions.create(model="policy", messages=[USER]))
        await until(lambda: r.engine.requests)
        record = await r.gateway.close_session("s")
        assert len(r.engine.cancelled) == 1 and not record.trace.calls
        with pytest.raises(openai.InternalServerError):
            await asking


async def test_gateway_closes_at_once_with_streams_open() -> None:
    async with rig([Delay(seconds=3600), say("late")]) as r, r.client() as client:
        stream = await client.chat.completions.create(model="policy", messages=[USER], stream=True)
        reading = asyncio.create_task(anext(aiter(stream)))
        await until(lambda: r.engine.requests)
        await asyncio.wait_for(r.gateway.close(), PATIENCE_S)
        with pytest.raises((openai.APIError, StopAsyncIteration)):
            await reading


async def test_interleaved_conversations_stay_apart() -> None:
    async with rig([say(f"answer {n}") for n in range(6)]) as r, r.client() as client:
        talks: list[list[Message]] = [[{"role": "user", "content": name}] for name in "ab"]
        for _ in range(3):
            for talk in talks:
                reply = await client.chat.completions.create(model="policy", messages=talk)
                talk += [reply.choices[0].message.model_dump(exclude_none=True), USER]
        trace = r.trace()
        assert [call.parent_id for call in trace.calls] == [None, None, 0, 1, 2, 3]
        assert len(list(trace.paths())) == 2
        assert_exact(trace, r.engine)


async def test_title_call_is_auxiliary_only_beside_calls_with_tools() -> None:
    async with rig([say("a title"), run_bash("ls")]) as r, r.client() as client:
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "title?"}])
        assert [call.role for call in r.trace().calls] == ["agent"]
        await client.chat.completions.create(model="policy", messages=[USER], tools=[BASH])
        assert [call.role for call in r.trace().calls] == ["auxiliary", "agent"]
        assert r.trace().calls[0].role_evidence


async def test_changed_tools_start_a_branch() -> None:
    other = {**BASH, "function": {**BASH["function"], "name": "sh"}}
    async with rig([say("one"), say("two")]) as r, r.client() as client:
        await client.chat.completions.create(model="policy", messages=[USER], tools=[BASH])
        more = [USER, say("one"), USER]
        await client.chat.completions.create(model="policy", messages=more, tools=[other])
        await client.chat.completions.create(model="policy", messages=[USER, say("never said"), USER], tools=[other])
        reasons = [(call.parent_id, call.branch_reason) for call in r.trace().calls]
        assert reasons == [(None, "first"), (None, "tools_changed"), (None, "history_changed")]
        assert_exact(r.trace(), r.engine)


async def test_policy_versions_are_kept() -> None:
    async with held() as (r, script), r.client() as client:
        asking = asyncio.create_task(client.chat.completions.create(model="policy", messages=[USER]))
        await until(lambda: r.engine.requests)
        r.engine.policy_version = 3
        script.go.set()
        await asking
        completion = r.trace().calls[0].completion
        assert (completion.min_policy_version, completion.max_policy_version) == (0, 3)
        assert np.all(completion.logprobs < 0)
