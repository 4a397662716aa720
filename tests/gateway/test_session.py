"""What HTTP has no part in: the in-process door, templates that refuse or cannot be bridged, and bugs of ours."""

from __future__ import annotations

import pytest

from longrein.engines.base import EngineRequest
from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.errors import ConfigError, GatewayRequestError
from longrein.gateway import ChatRequest, GatewaySettings
from longrein.gateway.session import GatewaySession, take
from longrein.types import I32
from tests import tiny
from tests.gateway.rig import BASH, USER, assert_exact, rig, rig_of, run_bash, say

NO_SEAM = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
REFUSES = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}{% endfor %}" + NO_SEAM


def session(template: str) -> GatewaySession:
    chat = ChatRenderer.of(tiny.tokenizer(template))
    engine = ScriptedEngine(
        TurnList(chat, [chat.encode("one"), chat.encode("two")]), vocab_size=chat.vocab_size, context_length=500
    )
    return GatewaySession("s", engine, chat, GatewaySettings())


async def test_in_process_requests_are_captured_like_any_other() -> None:
    async with rig([run_bash("ls"), say("done")]) as r:
        first = await r.gateway.complete("s", ChatRequest(messages=(USER,), tools=(BASH,)))
        assert first.finish_reason == "tool_calls"
        tool = {"role": "tool", "tool_call_id": first.message["tool_calls"][0]["id"], "content": "out"}
        again = ChatRequest(messages=(USER, first.message, tool), tools=(BASH,))
        assert (await r.gateway.complete("s", again)).message["content"] == "done"
        assert [call.parent_id for call in r.trace().calls] == [None, 0]
        assert all(call.delivered for call in r.trace().calls)
        assert_exact(r.trace(), r.engine)


async def test_session_ids_are_unique_and_must_be_open() -> None:
    async with rig([]) as r:
        with pytest.raises(ConfigError, match="open already"):
            r.gateway.open_session("s")
        with pytest.raises(ConfigError, match="open_session"):
            r.gateway.trace("other")
        assert r.gateway.open_session("t").api_key != r.endpoint.api_key


async def test_what_cannot_be_bridged_starts_a_branch_and_is_counted() -> None:
    s = session(NO_SEAM)
    first = await take(s, ChatRequest(messages=(USER,)))
    await take(s, ChatRequest(messages=(USER, first.message, USER)))
    record = await s.close()
    assert [call.branch_reason for call in record.trace.calls] == ["first", "not_bridgeable"]
    assert record.counters["branch_not_bridgeable"] == 1


async def test_conversation_that_the_template_refuses() -> None:
    s = session(REFUSES)
    with pytest.raises(GatewayRequestError, match="chat template refuses"):
        s.admit(ChatRequest(messages=(USER, {"role": "tool", "content": "x", "tool_call_id": "c"})))
    record = await s.close()
    assert record.failure is None and not record.truncated


class Broken(TurnList):
    async def reply(self, request: EngineRequest) -> I32:
        raise ZeroDivisionError("a bug")


async def test_bug_of_ours_reaches_the_owner_of_the_session() -> None:
    s = session(tiny.CHATML)
    async with rig_of(Broken(s._renderer)) as r:
        with pytest.raises(ZeroDivisionError):
            await r.gateway.complete("s", ChatRequest(messages=(USER,)))
        with pytest.raises(ZeroDivisionError):
            await r.gateway.close_session("s")
