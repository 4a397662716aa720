"""Other ways in which official clients speak the chat dialect: synchronously, and by the stream helper."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from longrein.types import Message
from tests.gateway.rig import BASH, USER, Rig, assert_exact, rig, run_bash, say


def talk(r: Rig) -> list[str]:
    """Two turns, the second one streamed, by the client that most agents use."""
    with OpenAI(base_url=f"{r.endpoint.base_url}/v1", api_key=r.endpoint.api_key, max_retries=0) as client:
        messages: list[Any] = [USER]
        message = client.chat.completions.create(model="m", messages=messages, tools=[BASH]).choices[0].message
        [call] = message.tool_calls or []
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "a.txt"}]
        chunks = client.chat.completions.create(model="m", messages=messages, tools=[BASH], stream=True)
        return [call.function.arguments, *[chunk.choices[0].delta.content or "" for chunk in chunks]]


async def test_the_synchronous_client_stays_on_one_branch() -> None:
    async with rig([run_bash("ls"), say("done")]) as r:
        arguments, *pieces = await asyncio.to_thread(talk, r)
        assert json.loads(arguments) == {"command": "ls"} and "".join(pieces) == "done"
        assert [call.parent_id for call in r.trace().calls] == [None, 0]
        assert all(call.delivered for call in r.trace().calls)
        assert_exact(r.trace(), r.engine)


async def test_the_stream_helper_puts_the_answer_together_and_its_echo_is_recognised() -> None:
    async with rig([run_bash("ls", "let me look"), say("done")]) as r, r.client() as client:
        messages: list[Message] = [USER]
        options: dict[str, Any] = {"model": "m", "tools": [BASH], "stream_options": {"include_usage": True}}
        async with client.chat.completions.stream(messages=messages, **options) as stream:
            kinds = [event.type async for event in stream]
            whole = await stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= set(kinds)
        assert "tool_calls.function.arguments.done" in kinds
        choice = whole.choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content == "let me look"
        [call] = choice.message.tool_calls or []
        assert json.loads(call.function.arguments) == {"command": "ls"}
        sampled = r.trace().calls[0].completion.token_ids.size
        assert whole.usage is not None and whole.usage.completion_tokens == sampled
        messages += [choice.message.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "a.txt"}]
        async with client.chat.completions.stream(messages=messages, **options) as stream:
            answer = (await stream.get_final_completion()).choices[0].message.content
        assert answer == "done" and [one.parent_id for one in r.trace().calls] == [None, 0]
        assert_exact(r.trace(), r.engine)


@pytest.mark.parametrize("modalities", [["text", "audio"], ["audio"], "audio", 5])
async def test_audio_is_refused(modalities: Any) -> None:
    async with rig([say("ok")]) as r, r.client() as client:
        raw = client.with_raw_response.chat.completions
        body = {"extra_body": {"modalities": modalities}}
        with pytest.raises(openai.BadRequestError, match="modalities other than text"):
            await raw.create(model="m", messages=[USER], **body)
        assert not r.engine.requests
        await raw.create(model="m", messages=[USER], modalities=["text"])
