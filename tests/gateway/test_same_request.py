"""What counts as the same request, and what an answer that comes back says: of delivery, of the turn it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from longrein.engines.base import EngineRequest
from longrein.gateway import ChatRequest
from longrein.gateway.tree import CallTree
from longrein.types import I32, Message
from tests.gateway.held import Held, drop, held, waiting
from tests.gateway.rig import BASH, USER, Rig, assert_exact, rig, rig_of, run_bash, say, until
from tests.gateway.tongues import TONGUES


def with_text(r: Rig, **fields: Any) -> dict[str, Any]:
    return {"url": r.url, "json": {"messages": [USER], "tools": [BASH], **fields}}


async def post(http: aiohttp.ClientSession, r: Rig, **fields: Any) -> dict[str, Any]:
    async with http.post(**with_text(r, **fields)) as response:
        return (await response.json())["choices"][0]["message"]


DIFFERENT = [
    [{"seed": 0}, {"seed": 1}, {}],
    [{"temperature": 1.0}, {"temperature": 0.5}],
    [{"tool_choice": "auto"}, {"tool_choice": "none"}],
    [{"max_tokens": 40}, {"max_tokens": 50}],
    [{"stop": ["a line"]}, {"stop": ["a page"]}, {}],
]


@pytest.mark.parametrize("fields", DIFFERENT)
async def test_requests_that_ask_for_something_else_share_no_answer(fields: list[dict[str, Any]]) -> None:
    """Neither while it is under way (best of n by seeds) nor when it never arrived."""
    async with held() as (r, script), aiohttp.ClientSession() as http:
        asking = [asyncio.create_task(post(http, r, **one)) for one in fields]
        await until(lambda: waiting(r) == len(fields))
        asking.pop().cancel()
        await until(lambda: waiting(r) == len(fields) - 1)
        script.go.set()
        answers = await asyncio.gather(*asking)
        assert len({answer["content"] for answer in answers}) == len(fields) - 1
        await until(lambda: len(r.trace().calls) == len(fields))
        again = await post(http, r, **fields[0])
        assert again["content"] == f"answer {len(fields) + 1}", "the last answer never arrived, but asked for another"


class SlowToStop(Held):
    """Was cancelled, and has not noticed until somebody asks anew."""

    async def reply(self, request: EngineRequest) -> I32:
        try:
            return await super().reply(request)
        except asyncio.CancelledError:
            await until(lambda: self.asked == 2)
            raise


async def test_what_is_being_cancelled_is_joined_by_nobody() -> None:
    script = SlowToStop()
    async with rig_of(script, abandon_grace_s=0.0) as r:
        await drop(TONGUES["chat"], r, "go")
        again = asyncio.create_task(TONGUES["chat"].ask(r, "go"))
        await until(lambda: script.asked == 2)
        script.go.set()
        assert "answer 2" in (await again).text


@asynccontextmanager
async def lost(said: Message) -> AsyncIterator[tuple[Rig, aiohttp.ClientSession]]:
    """A session whose first answer was finished while nobody waited."""
    script = Held(said)
    async with rig_of(script) as r, aiohttp.ClientSession() as http:
        asking = asyncio.create_task(post(http, r))
        await until(lambda: waiting(r))
        asking.cancel()
        await until(lambda: not waiting(r))
        script.go.set()
        await until(lambda: r.trace().calls)
        assert not r.trace().calls[0].delivered
        yield r, http


@pytest.mark.parametrize("said", [say("all of it"), run_bash("ls"), run_bash("ls", "I look")])
async def test_a_call_that_is_gone_on_from_was_delivered(said: Message) -> None:
    """The agent had it all when its connection broke: no parent stays behind untrained."""
    async with lost(said) as (r, http):
        reply = r.trace().calls[0].reply
        ids = [call["id"] for call in reply.get("tool_calls") or []]
        follows = [{"role": "tool", "content": "out", "tool_call_id": ids[0]}] if ids else [USER]
        await post(http, r, messages=[USER, reply, *follows])
        assert [(call.parent_id, call.delivered) for call in r.trace().calls] == [(None, True), (0, True)]
        assert_exact(r.trace(), r.engine)


async def test_an_answer_that_stays_in_a_changed_history_was_delivered() -> None:
    async with lost(say("all of it")) as (r, http):
        system = {"role": "system", "content": "new"}
        await post(http, r, messages=[system, USER, r.trace().calls[0].reply, USER])
        assert [(call.parent_id, call.delivered) for call in r.trace().calls] == [(None, True), (None, True)]


@pytest.mark.parametrize("said", [say("all of it"), run_bash("ls"), run_bash("ls", "I look")])
async def test_a_whole_answer_at_the_end_that_never_arrived_is_given_again(said: Message) -> None:
    """Codex, when a stream breaks just before its last event."""
    async with lost(said) as (r, http):
        reply = r.trace().calls[0].reply
        assert await post(http, r, messages=[USER, reply]) == reply
        assert [call.delivered for call in r.trace().calls] == [True]
        again = await post(http, r, messages=[USER, reply])
        assert again["content"] == "answer 2"
        call = r.trace().calls[1]
        if reply.get("tool_calls"):
            assert (call.parent_id, call.branch_reason) == (None, "repeated"), (
                "calls without results are not gone on from"
            )
        else:
            assert call.parent_id == 0, "the agent has it and wants more"
        assert_exact(r.trace(), r.engine)


@pytest.mark.parametrize("said", [say("hello world"), run_bash("ls", "hello world")])
async def test_an_answer_that_comes_back_in_parts_is_the_same(said: Message) -> None:
    async with rig([said, say("done")]) as r, aiohttp.ClientSession() as http:
        reply = await post(http, r)
        parts = [{"type": "text", "text": text} for text in ("hello ", "world")]
        ids = [call["id"] for call in reply.get("tool_calls") or []]
        follows = [{"role": "tool", "content": "out", "tool_call_id": ids[0]}] if ids else [USER]
        await post(http, r, messages=[USER, {**reply, "content": parts}, *follows])
        assert [call.parent_id for call in r.trace().calls] == [None, 0]


async def test_answers_that_differ_in_their_lines_are_told_apart() -> None:
    async with rig([say("a\nb"), say("ab"), say("one"), say("two")]) as r, aiohttp.ClientSession() as http:
        for _ in range(2):
            await post(http, r)
        for text in ("a\nb", "ab"):
            await post(http, r, messages=[USER, say(text), USER])
        assert [call.parent_id for call in r.trace().calls] == [None, None, 0, 1]


def test_length_and_stops_are_part_of_a_request() -> None:
    """Of themselves, whatever a dialect records as asked for."""

    def key(max_tokens: int, *stop: str) -> bytes:
        return CallTree("s").history(ChatRequest(messages=(USER,), stop=stop), max_tokens).key

    assert key(9) == key(9)
    assert len({key(9), key(8), key(9, "a"), key(9, "b")}) == 4
