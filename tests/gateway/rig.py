"""A gateway in front of a scripted engine, and how agents talk to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import numpy as np
from openai import AsyncOpenAI

from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import Entry, Script, ScriptedEngine, TurnList
from longrein.gateway import Gateway, GatewaySettings
from longrein.types import Endpoint, Message, Tool, Trace
from tests import tiny, waiting

BASH: Tool = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
USER: Message = {"role": "user", "content": "go"}
PATIENCE_S = 60.0
"""How long what must come may take, on whatever machine."""


@cache
def renderer() -> ChatRenderer:
    return ChatRenderer.of(tiny.tokenizer())


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def run_bash(command: str, text: str = "") -> Message:
    arguments = json.dumps({"command": command})
    function = {"name": "bash", "arguments": arguments}
    return {"role": "assistant", "content": text, "tool_calls": [{"id": "x", "type": "function", "function": function}]}


async def until(condition: Callable[[], object]) -> None:
    await waiting.until(condition, PATIENCE_S)


class Rig:
    """One gateway, one engine, one session ``s`` whose turns are told up front."""

    def __init__(self, gateway: Gateway, engine: ScriptedEngine, endpoint: Endpoint) -> None:
        self.gateway = gateway
        self.engine = engine
        self.endpoint = endpoint

    @property
    def url(self) -> str:
        return f"{self.endpoint.base_url}/v1/chat/completions"

    @property
    def bare_url(self) -> str:
        return f"http://127.0.0.1:{self.endpoint.port}/v1/chat/completions"

    @property
    def auth(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.endpoint.api_key}"}

    def client(self, **options: Any) -> AsyncOpenAI:
        base = {"base_url": f"{self.endpoint.base_url}/v1", "api_key": self.endpoint.api_key, "max_retries": 0}
        return AsyncOpenAI(**{**base, **options})

    def trace(self) -> Trace:
        return self.gateway.trace("s")


@asynccontextmanager
async def rig(turns: Sequence[Entry], **options: Any) -> AsyncIterator[Rig]:
    async with rig_of(TurnList(renderer(), turns), **options) as r:
        yield r


@asynccontextmanager
async def rig_of(script: Script, *, context_length: int = 8192, **settings: Any) -> AsyncIterator[Rig]:
    chat = renderer()
    engine = ScriptedEngine(script, vocab_size=chat.vocab_size, context_length=context_length)
    options = {"context_length": context_length, "retry_delay_s": 0.001, **settings}
    gateway = Gateway(engine, chat, GatewaySettings(**options))
    await gateway.start()
    try:
        yield Rig(gateway, engine, gateway.open_session("s"))
    finally:
        await gateway.close()


def assert_exact(trace: Trace, engine: ScriptedEngine) -> None:
    """Invariant 1: prompts are what the engine saw, completions are what it said, children extend their parents."""
    seen = {request.request_id: request for request in engine.requests}
    # Both are in order of completion.
    for call, request_id in zip(trace.calls, engine.completions, strict=True):
        prompt = trace.prompt_ids(call)
        assert prompt.dtype == np.int32 and call.completion.token_ids.dtype == np.int32
        assert call.completion.logprobs.dtype == np.float32
        np.testing.assert_array_equal(prompt, seen[request_id].prompt_ids)
        np.testing.assert_array_equal(call.completion.token_ids, engine.completions[request_id].token_ids)
        np.testing.assert_array_equal(call.completion.logprobs, engine.completions[request_id].logprobs)
        if call.parent_id is not None:
            parent = trace.calls[call.parent_id]
            stream = np.concatenate([trace.prompt_ids(parent), parent.completion.token_ids])
            np.testing.assert_array_equal(prompt[: stream.size], stream)
            assert prompt.size > stream.size
