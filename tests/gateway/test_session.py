"""What HTTP has no part in: the in-process door, templates that refuse or cannot be bridged, and bugs of ours."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from longrein.engines.base import EngineRequest
from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import Delay, ScriptedEngine, TurnList
from longrein.errors import BugError, ConfigError, GatewayRequestError, SandboxError
from longrein.gateway import ChatRequest, Gateway, GatewaySettings
from longrein.gateway.closings import KEPT_RECORDS
from longrein.gateway.session import GatewaySession, take
from longrein.rollout.driver import Attempt, LoopOwningDriver
from longrein.sessions.base import AgentExit
from longrein.types import I32, Endpoint, Score, Task
from tests import tiny
from tests.gateway.rig import BASH, USER, assert_exact, renderer, rig, rig_of, run_bash, say, until

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
        await s.admit(ChatRequest(messages=(USER, {"role": "tool", "content": "x", "tool_call_id": "c"})))
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


async def test_closing_twice_gives_the_same_record_and_the_id_may_be_used_anew() -> None:
    async with rig([say("one")]) as r:
        await r.gateway.complete("s", ChatRequest(messages=(USER,)))
        record = await r.gateway.close_session("s")
        assert len(record.trace.calls) == 1
        assert await r.gateway.close_session("s") is record
        r.gateway.open_session("s")
        assert (await r.gateway.close_session("s")).trace.calls == ()


async def test_a_cancelled_close_goes_on_and_can_be_asked_again() -> None:
    async with rig([Delay(seconds=3600.0), say("never")]) as r:
        asking = asyncio.create_task(r.gateway.complete("s", ChatRequest(messages=(USER,))))
        await until(lambda: r.engine.requests)
        closing = asyncio.create_task(r.gateway.close_session("s"))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(GatewayRequestError, match="over"):
            await asking
        assert (await r.gateway.close_session("s")).trace.calls == ()


async def test_few_records_are_kept_of_many_sessions() -> None:
    async with rig([]) as r:
        for number in range(KEPT_RECORDS + 2):
            r.gateway.open_session(str(number))
            await r.gateway.close_session(str(number))
        with pytest.raises(ConfigError, match="not open"):
            await r.gateway.close_session("0")
        assert (await r.gateway.close_session("2")).trace.session_id == "2"


class Failing(TurnList):
    """A script whose bug has the type it is told."""

    def __init__(self, error: Exception) -> None:
        super().__init__(renderer())
        self._error = error

    async def reply(self, request: EngineRequest) -> I32:
        raise self._error


class Asking:
    """A session whose agent asks its model once, in-process, and shrugs off any answer."""

    def __init__(self) -> None:
        self.gateway: Gateway | None = None

    async def create(self, *, task: Task, endpoint: Endpoint, session_id: str) -> Asking:
        return self

    async def run(self) -> AgentExit:
        assert self.gateway is not None
        with suppress(KeyError, OSError):
            await self.gateway.complete("rollout", ChatRequest(messages=(USER,)))
        return AgentExit(exit_code=0, timed_out=False, output_tail="", duration_s=0.0)

    async def verify(self) -> Score:
        return Score(reward=0.0)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("bug", "raised"), [(KeyError("key"), KeyError), (OSError("file"), BugError), (SandboxError("dir"), BugError)]
)
async def test_bug_of_ours_comes_out_of_the_driver(bug: Exception, raised: type[Exception]) -> None:
    async with rig_of(Failing(bug)) as r:
        session = Asking()
        session.gateway = r.gateway
        attempt = Attempt(rollout_id="rollout", group_id="g", task=Task(task_id="t", prompt="p"), seed=0)
        with pytest.raises(raised) as caught:
            await LoopOwningDriver(r.gateway, session).run(attempt)
    assert bug in (caught.value, caught.value.__cause__)
