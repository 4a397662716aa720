"""Prompts that take long to write: written beside the event loop, while sessions go on; or refused unwritten."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.base import EngineRequest
from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.errors import GatewayRequestError, PromptTooLongError
from longrein.gateway import GatewaySettings
from longrein.gateway.aside import LARGE_BYTES
from longrein.gateway.dialect import ChatReply, ChatRequest
from longrein.gateway.fit import tokens_too_many
from longrein.gateway.session import GatewaySession, take
from longrein.types import I32, Message, Tool
from tests import tiny
from tests.gateway.rig import BASH, PATIENCE_S, USER, rig, say, until
from tests.gateway.tongues import Tongue, in_every_tongue


class Slow(ChatRenderer):
    """Takes until it is told to go on, for conversations about something large."""

    go_on: threading.Event
    begun: int

    def render(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> I32:
        if "large" in messages[-1]["content"]:
            self.begun += 1
            assert self.go_on.wait(PATIENCE_S)
        return super().render(messages, tools)


class Turns(TurnList):
    """Says nothing while the answers are held back."""

    def __init__(self, chat: ChatRenderer, says: tuple[Message, ...]) -> None:
        super().__init__(chat, says)
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def reply(self, request: EngineRequest) -> I32:
        await self.go_on.wait()
        return await super().reply(request)


class Asked:
    def __init__(self, *says: Message) -> None:
        chat = Slow.of(tiny.tokenizer())
        assert isinstance(chat, Slow)
        chat.go_on, chat.begun = threading.Event(), 0
        self.renderer = chat
        self.answers = Turns(chat, says)
        self.engine = ScriptedEngine(self.answers, vocab_size=chat.vocab_size, context_length=8192)
        self.session = GatewaySession("s", self.engine, chat, GatewaySettings())

    def ask(self, *messages: Message, size_bytes: int = 0) -> asyncio.Task[ChatReply]:
        request = ChatRequest(messages=messages, tools=(BASH,), size_bytes=size_bytes)
        return asyncio.create_task(take(self.session, request))

    async def ask_large(self, *messages: Message) -> asyncio.Task[ChatReply]:
        """Returns once it is being written."""
        begun = self.renderer.begun
        task = self.ask(*messages, {"role": "user", "content": "large"}, size_bytes=LARGE_BYTES)
        await until(lambda: self.renderer.begun > begun)
        return task


async def test_others_are_answered_and_the_same_request_shares_the_answer() -> None:
    asked = Asked(say("small"), say("large"))
    first = await asked.ask_large()
    second = asked.ask({"role": "user", "content": "large"}, size_bytes=LARGE_BYTES)
    assert (await asked.ask(USER)).message["content"] == "small"
    asked.answers.go_on.clear()
    asked.renderer.go_on.set()
    await until(lambda: asked.session.counters["coalesced"])
    asked.answers.go_on.set()
    assert [(await task).message["content"] for task in (first, second)] == ["large", "large"]
    record = await asked.session.close()
    assert len(asked.engine.requests) == 2 and record.counters["coalesced"] == 1 and asked.renderer.begun == 2
    # Its place is where the tree has it by then, not where it was when the writing began.
    assert [call.branch_reason for call in record.trace.calls] == ["first", "new_conversation"]


async def test_a_session_that_is_closed_meanwhile_samples_nothing() -> None:
    asked = Asked(say("large"))
    task = await asked.ask_large()
    record = await asked.session.close()
    asked.renderer.go_on.set()
    with pytest.raises(GatewayRequestError, match="closed"):
        await task
    assert not record.trace.calls and not asked.engine.requests


async def test_budgets_hold_for_what_was_written_meanwhile() -> None:
    asked = Asked(*[say(f"answer {number}") for number in range(9)])
    asked.session._budget._settings = GatewaySettings(max_calls=1)
    task = await asked.ask_large()
    await asked.ask(USER)
    asked.renderer.go_on.set()
    assert "limit" in (await task).message["content"] and len(asked.engine.requests) == 1


@in_every_tongue
async def test_what_cannot_fit_is_refused_without_being_written(
    tongue: Tongue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig([say("fine")], context_length=100) as r:
        longest = r.gateway._renderer.longest_token
        monkeypatch.setattr(r.gateway._renderer, "render", None)
        heard = await tongue.ask(r, "long " * 101 * longest)
        assert heard.status == 400 and tongue.refusal(heard.json())
        counters = (await r.gateway.close_session("s")).counters
        assert counters["over_context"] == 1 and counters["refused_context_length_exceeded"] == 1


texts = st.text(max_size=30) | st.sampled_from(["word " * 40, "é" * 90, "e\u0301" * 50, "   \n" * 50, "<|im_end|>" * 9])


@settings(max_examples=200, deadline=None)
@given(said=st.lists(st.tuples(st.sampled_from(["user", "tool", "assistant"]), texts), min_size=1, max_size=6))
def test_what_is_refused_so_would_not_have_fitted(said: list[tuple[str, str]]) -> None:
    chat = ChatRenderer.of(tiny.tokenizer())
    messages: list[dict[str, Any]] = [USER, *({"role": role, "content": text} for role, text in said)]
    request = ChatRequest(messages=tuple(messages), size_bytes=1 << 30)
    tokens = chat.render(request.messages, ()).size
    for longest in (chat.longest_token, 1):
        least = tokens_too_many(request, 10, longest)
        # Bytes are tokens here, all but the few special ones.
        assert least <= tokens or longest == 1
        assert least == 0 or least > 10


def test_lower_bounds_read_as_what_agents_look_for() -> None:
    error = PromptTooLongError(prompt_tokens=101, context_length=100)
    assert "maximum context length is 100 tokens" in str(error) and "101 tokens" in str(error)
