"""The Messages dialect, spoken by Anthropic's own client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool

from longrein.engines.scripted import Fault
from longrein.errors import EngineError
from longrein.gateway.dialect import ChatReply, ChatRequest
from longrein.gateway.dialects.messages.dialect import MessagesDialect
from longrein.types import I32, Message
from tests.gateway.held import held
from tests.gateway.rig import Rig, assert_exact, renderer, rig, run_bash, say

USER: Any = {"role": "user", "content": "go"}
BASH: Any = {
    "name": "bash",
    "description": "Run a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
ASK: dict[str, Any] = {"model": "policy", "max_tokens": 500, "messages": [USER]}


def client(r: Rig, **options: Any) -> AsyncAnthropic:
    base = {"base_url": r.endpoint.base_url, "api_key": r.endpoint.api_key, "max_retries": 0}
    return AsyncAnthropic(**{**base, **options})


def sync_client(r: Rig) -> Anthropic:
    return Anthropic(base_url=r.endpoint.base_url, auth_token=r.endpoint.api_key, max_retries=0)


def sampled(text: str) -> I32:
    """A turn as the model writes it, thought included."""
    return renderer().encode(f"{text}<|im_end|>")


def two_calls(thought: str = "") -> I32:
    call = '<tool_call>{"name": "bash", "arguments": {"command": "%s"}}</tool_call>'
    return sampled(f"<think>{thought}</think>both{call % 'ls'}{call % 'pwd'}")


def results(message: Any, *then: Any) -> Any:
    """What a client answers to a message's tool calls."""
    given = [
        {"type": "tool_result", "tool_use_id": block.id, "content": f"out {block.input}"}
        for block in message.content
        if block.type == "tool_use"
    ]
    return {"role": "user", "content": [*given, *then]}


async def test_answer_and_usage_are_what_the_engine_said() -> None:
    async with rig([say("hello é")]) as r, client(r) as c:
        message = await c.messages.create(**ASK)
        assert message.id.startswith("msg_") and message.model == "policy"
        assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "hello é"}]
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        call = r.trace().calls[0]
        assert message.usage.output_tokens == call.completion.token_ids.size
        assert message.usage.input_tokens == call.prompt_delta.size
        assert call.delivered and call.dialect == "messages"


def test_cached_tokens_are_counted_apart() -> None:
    message: Message = {"role": "assistant", "content": "x"}
    reply = ChatReply(message=message, finish_reason="stop", prompt_tokens=30, completion_tokens=4, cached_tokens=20)
    usage = json.loads(MessagesDialect().encode(reply, ChatRequest(messages=()), "policy"))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (10, 20, 4)


async def test_stream_gives_the_same_message_in_events() -> None:
    async with rig([two_calls("let me think")]) as r, client(r) as c:
        async with c.messages.stream(**ASK, tools=[BASH]) as stream:
            kinds = [event.type async for event in stream]
            message = await stream.get_final_message()
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
        assert {"thinking", "signature", "text", "input_json"} <= set(kinds)
        thought, text, first, second = message.content
        assert thought.type == "thinking" and thought.thinking == "let me think" and thought.signature
        assert text.type == "text" and text.text == "both"
        assert first.type == second.type == "tool_use"
        assert (first.input, second.input) == ({"command": "ls"}, {"command": "pwd"})
        assert message.stop_reason == "tool_use"
        call = r.trace().calls[0]
        assert message.usage.input_tokens == call.prompt_delta.size
        assert message.usage.output_tokens == call.completion.token_ids.size
        assert call.delivered


async def test_synchronous_client_streams_and_asks() -> None:
    def talk(r: Rig) -> tuple[str, str]:
        with sync_client(r) as c:
            whole = c.beta.messages.create(**ASK)  # with ?beta=true
            with c.messages.stream(**ASK) as stream:
                pieces = "".join(stream.text_stream)
        assert whole.content[0].type == "text"
        return whole.content[0].text, pieces

    async with rig([say("one"), say("two")]) as r:
        assert await asyncio.to_thread(talk, r) == ("one", "two")


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_and_parallel_calls_stay_on_one_branch(stream: bool) -> None:
    turns = [two_calls("first"), two_calls("second"), sampled("<think>third</think>done")]
    async with rig(turns) as r, client(r) as c:
        messages: list[Any] = [USER]
        for _ in turns:
            asked = {**ASK, "messages": messages, "tools": [BASH], "system": "be good"}
            if stream:
                async with c.messages.stream(**asked) as events:
                    message: Any = await events.get_final_message()
            else:
                message = await c.messages.create(**asked)
            reminder = {"type": "text", "text": "<system-reminder>", "cache_control": {"type": "ephemeral"}}
            messages += [{"role": "assistant", "content": message.content}, results(message, reminder)]
        trace = r.trace()
        assert [call.parent_id for call in trace.calls] == [None, 0, 1]
        assert [message["role"] for message in trace.calls[1].messages] == ["tool", "tool", "user"]
        assert trace.calls[1].messages[1]["tool_call_id"] == trace.calls[0].reply["tool_calls"][1]["id"]
        assert trace.delivered_token_fraction == 1.0
        assert_exact(trace, r.engine)


async def test_asynchronous_tool_runner_runs_to_the_end_on_one_branch() -> None:
    ran: list[str] = []

    @beta_async_tool
    async def bash(command: str) -> str:
        """Run a command."""
        ran.append(command)
        if command == "bad":
            raise ValueError("no such command")
        return "fine"

    async with rig([run_bash("ls"), run_bash("bad", "hm"), two_calls(), say("done")]) as r, client(r) as c:
        last = await c.beta.messages.tool_runner(**ASK, tools=[bash]).until_done()
        assert last.content[0].type == "text" and last.content[0].text == "done"
        assert ran == ["ls", "bad", "ls", "pwd"]
        trace = r.trace()
        assert [call.parent_id for call in trace.calls] == [None, 0, 1, 2]
        assert "no such command" in trace.calls[2].messages[0]["content"]
        assert_exact(trace, r.engine)


async def test_synchronous_tool_runner_streams() -> None:
    @beta_tool
    def bash(command: str) -> str:
        """Run a command."""
        return f"ran {command}"

    def talk(r: Rig) -> list[str | None]:
        with sync_client(r) as c:
            runner = c.beta.messages.tool_runner(**ASK, tools=[bash], stream=True)
            return [stream.get_final_message().stop_reason for stream in runner]

    async with rig([run_bash("ls"), say("done")]) as r:
        assert await asyncio.to_thread(talk, r) == ["tool_use", "end_turn"]
        assert [call.parent_id for call in r.trace().calls] == [None, 0]


async def test_cut_answer_says_max_tokens_and_is_still_extended() -> None:
    async with rig([say("a long answer that is cut"), say("ok")]) as r, client(r) as c:
        cut = await c.messages.create(**{**ASK, "max_tokens": 6})
        assert cut.stop_reason == "max_tokens"
        more: list[Any] = [USER, {"role": "assistant", "content": cut.content}, USER]
        await c.messages.create(**{**ASK, "messages": more})
        assert [call.parent_id for call in r.trace().calls] == [None, 0]


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_sequences_are_named(stream: bool) -> None:
    async with rig([say("one STOP two")]) as r, client(r) as c:
        asked = {**ASK, "stop_sequences": ["HALT", "STOP"]}
        if stream:
            async with c.messages.stream(**asked) as events:
                message: Any = await events.get_final_message()
        else:
            message = await c.messages.create(**asked)
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")
        assert message.content[0].text == "one "
        assert r.engine.requests[0].sampling.stop == ("HALT", "STOP")


async def test_wishes_are_recorded_and_the_run_decides() -> None:
    async with rig([say("x")], temperature=0.7) as r, client(r) as c:
        wishes: dict[str, Any] = {
            "temperature": 0.1,
            "top_k": 5,
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "metadata": {"user_id": "me"},
            "context_management": {"edits": []},
            "output_config": {"effort": "high"},
        }
        await c.beta.messages.create(**ASK, extra_body=wishes, tools=[BASH], betas=["effort-2025-11-24"])
        sampling = r.engine.requests[0].sampling
        assert (sampling.temperature, sampling.top_k) == (0.7, 0)
        assert r.trace().calls[0].asked == {**wishes, "max_tokens": 500, "betas": "effort-2025-11-24"}


async def test_counted_tokens_are_the_prompts_and_nothing_is_recorded() -> None:
    async with rig([say("x")]) as r, client(r) as c:
        conversation: dict[str, Any] = {"model": "policy", "messages": [USER], "tools": [BASH], "system": "be good"}
        count = await c.messages.count_tokens(**conversation)
        beta_count = await c.beta.messages.count_tokens(**conversation)
        assert not r.trace().calls and not r.engine.requests
        message = await c.messages.create(**conversation, max_tokens=9)
        assert count.input_tokens == beta_count.input_tokens == message.usage.input_tokens


async def test_models_in_the_form_of_who_asks() -> None:
    async with rig([]) as r, client(r) as c, r.client() as openai:
        assert [model.id async for model in c.models.list()] == ["policy"]
        model = await c.models.retrieve("claude-whatever")
        assert (model.id, model.type, model.max_input_tokens) == ("policy", "model", 8192)
        assert [model.object async for model in openai.models.list()] == ["model"]


async def test_over_long_prompt_is_said_in_the_words_that_claude_code_looks_for() -> None:
    async with rig([say("x")], context_length=64) as r, client(r) as c:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await c.messages.create(**{**ASK, "messages": [{"role": "user", "content": "y" * 100}]})
        assert error_of(caught.value)["type"] == "invalid_request_error"
        tokens = renderer().render(({"role": "user", "content": "y" * 100},), ()).size
        assert error_of(caught.value)["message"] == f"prompt is too long: {tokens} tokens > 64 maximum"
        assert (await r.gateway.close_session("s")).truncated


async def test_failed_engine_is_overloaded_and_a_failure() -> None:
    async with rig([Fault(error=EngineError("gone"))]) as r, client(r) as c:
        with pytest.raises(anthropic.InternalServerError) as caught:
            await c.messages.create(**ASK)
        assert caught.value.status_code == 503 and error_of(caught.value)["type"] == "overloaded_error"
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with c.messages.stream(**ASK) as stream:
                await stream.get_final_message()
        assert error_of(caught.value)["type"] == "overloaded_error"
        record = await r.gateway.close_session("s")
        assert record.failure is not None and record.failure.kind == "engine"


async def test_refusals_are_the_clients_own_exceptions() -> None:
    async with rig([say("fine")]) as r, client(r) as c:
        async with client(r, base_url=f"http://127.0.0.1:{r.endpoint.port}", api_key="nonsense") as stranger:
            with pytest.raises(anthropic.AuthenticationError) as wrong_key:
                await stranger.messages.create(**ASK)
        with pytest.raises(anthropic.NotFoundError) as no_route:
            await c.messages.batches.list()
        with pytest.raises(anthropic.RequestTooLargeError) as too_large:
            await c.messages.create(**{**ASK, "system": "x" * 5_000_000})
        with pytest.raises(anthropic.BadRequestError) as image:
            source = {"type": "base64", "media_type": "image/png", "data": ""}
            content: Any = [{"type": "image", "source": source}]
            await c.messages.create(**{**ASK, "messages": [{"role": "user", "content": content}]})
        kinds = [error_of(caught.value)["type"] for caught in (wrong_key, no_route, too_large, image)]
        assert kinds == ["authentication_error", "not_found_error", "request_too_large", "invalid_request_error"]
        assert "'image'" in error_of(image.value)["message"]
        assert (await c.messages.create(**ASK)).stop_reason == "end_turn"


async def test_waiting_stream_pings_and_the_client_does_not_mind() -> None:
    async with held(say("slow"), keep_alive_s=0.02) as (r, script), client(r) as c:
        url = f"{r.endpoint.base_url}/v1/messages"
        async with (
            c.messages.stream(**ASK) as stream,
            aiohttp.ClientSession() as http,
            http.post(url, json={**ASK, "stream": True}) as response,
        ):
            pings = [await response.content.readuntil(b"\n\n") for _ in range(3)]
            script.go.set()
            text = (b"".join(pings) + await response.read()).decode()
            assert await stream.get_final_text() == "slow"
        assert text.startswith("event: ping\ndata: ") and text.count("event: ping\n") >= 3
        assert text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')


def error_of(error: anthropic.APIStatusError) -> dict[str, str]:
    """The error in a body, whose form is checked."""
    body: Any = error.body
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["request_id"].startswith("req_")
    return body["error"]
