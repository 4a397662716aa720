"""What a session may use: over it, every dialect's agent gets a final answer that no trace holds."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.scripted import Delay, ScriptedEngine, TurnList
from longrein.errors import PromptTooLongError
from longrein.gateway import ChatRequest, GatewaySettings
from longrein.gateway.session import GatewaySession, SessionRecord, take
from tests.gateway.held import held
from tests.gateway.rig import PATIENCE_S, USER, renderer, rig, say, until
from tests.gateway.tongues import Heard, Tongue, in_every_tongue


def assert_final(heard: Heard, limit: str) -> None:
    assert heard.status == 200, heard.text
    assert f"The {limit} limit of this session is reached" in heard.text


def assert_not_sampled(record: SessionRecord, **reasons: float) -> None:
    """Truncated, no failure, and each final answer counted by its reason."""
    assert record.truncated and record.failure is None
    found = {name: count for name, count in record.counters.items() if name.startswith("not_sampled")}
    expected = {f"not_sampled_{reason}": float(count) for reason, count in reasons.items()}
    assert found == {**expected, "not_sampled": float(sum(reasons.values()))}


@in_every_tongue
async def test_calls(tongue: Tongue) -> None:
    async with rig([say("one"), say("two"), say("three")], max_calls=2) as r:
        for text in ("one", "two"):
            assert text in (await tongue.ask(r, text)).text
        for _ in range(2):
            assert_final(await tongue.ask(r, "and now?"), "call")
        record = await r.gateway.close_session("s")
        assert_not_sampled(record, calls=2)
        assert len(record.trace.calls) == len(r.engine.requests) == 2


@in_every_tongue
async def test_sampled_tokens(tongue: Tongue) -> None:
    async with rig([say("one"), say("x" * 100), say("three")], max_sampled_tokens=24) as r:
        await tongue.ask(r, "a")
        heard = await tongue.ask(r, "b")
        assert heard.status == 200
        one, cut = r.trace().calls
        assert one.completion.token_ids.size + cut.completion.token_ids.size == 24
        assert cut.completion.finish_reason == "length"
        assert_final(await tongue.ask(r, "c"), "token")
        assert_not_sampled(await r.gateway.close_session("s"), sampled_tokens=1)


async def test_session_whose_last_answer_the_budget_cut_is_truncated_though_nobody_asks_again() -> None:
    async with rig([say("x" * 100)], max_sampled_tokens=24) as r:
        await r.gateway.complete("s", ChatRequest(messages=(USER,)))
        assert (await r.gateway.close_session("s")).truncated


@pytest.mark.parametrize(("asks", "truncated"), [(["x" * 900], True), (["x" * 900, "less"], False)])
async def test_full_context_truncates_unless_the_agent_goes_on_with_less(asks: list[str], truncated: bool) -> None:
    async with rig([say("fine")], context_length=512) as r:
        for text in asks:
            request = ChatRequest(messages=({"role": "user", "content": text},))
            with contextlib.suppress(PromptTooLongError):
                await r.gateway.complete("s", request)
        record = await r.gateway.close_session("s")
        assert (record.truncated, record.counters["over_context"]) == (truncated, 1)


async def test_agents_own_token_limit_truncates_nothing() -> None:
    async with rig([say("x" * 100)], max_sampled_tokens=24) as r:
        await r.gateway.complete("s", ChatRequest(messages=(USER,), max_tokens=5))
        assert not (await r.gateway.close_session("s")).truncated


@in_every_tongue
async def test_time_ends_a_generation_under_way(tongue: Tongue, monkeypatch: pytest.MonkeyPatch) -> None:
    async with held() as (r, _):
        budget = r.gateway._keys.session("s")._budget
        start_call = budget.start_call

        def start_late() -> int:
            budget._ends_at_s = time.monotonic() + 0.15
            return start_call()

        # However long the request took to come, it comes just before the time is up.
        monkeypatch.setattr(budget, "start_call", start_late)
        assert_final(await asyncio.wait_for(tongue.ask(r, "a"), PATIENCE_S), "time")
        assert len(r.engine.cancelled) == 1
        assert_final(await tongue.ask(r, "b"), "time")
        record = await r.gateway.close_session("s")
        assert_not_sampled(record, time=2)
        assert len(r.engine.requests) == 1 and not record.trace.calls


@in_every_tongue
async def test_context(tongue: Tongue) -> None:
    """An agent that compacts and asks again for ever, as OpenCode does, is refused a few times and then sent home."""
    async with rig([say("fits")], context_length=100, max_context_refusals=2) as r:
        for _ in range(2):
            heard = await tongue.ask(r, "y" * 200)
            assert heard.status == 400 and tongue.refuses(heard)
            assert "fits" in (await tongue.ask(r, "compact")).text
        assert_final(await tongue.ask(r, "y" * 200), "context")
        assert "fits" in (await tongue.ask(r, "compact")).text
        record = await r.gateway.close_session("s")
        assert_not_sampled(record, context=1)
        assert record.counters["over_context"] == 3


async def test_context_that_only_the_engine_knows() -> None:
    script = TurnList(renderer(), [say("never")])
    engine = ScriptedEngine(script, vocab_size=renderer().vocab_size, context_length=10)
    session = GatewaySession("s", engine, renderer(), GatewaySettings(max_context_refusals=1))
    with pytest.raises(PromptTooLongError):
        await take(session, ChatRequest(messages=(USER,)))
    final = await take(session, ChatRequest(messages=(USER,)))
    assert "context limit" in final.message["content"]
    assert_not_sampled(await session.close(), context=1)


async def test_what_never_arrived_is_replayed_even_over_budget() -> None:
    async with rig([Delay(seconds=0.05), say("one")], max_calls=1) as r:
        session = r.gateway._keys.session("s")
        ticket = await session.admit(ChatRequest(messages=(USER,)))
        ticket.leave()
        await until(lambda: r.trace().calls)
        assert (await r.gateway.complete("s", ChatRequest(messages=(USER,)))).message["content"] == "one"
        assert "limit" in (await r.gateway.complete("s", ChatRequest(messages=(USER,)))).message["content"]


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=12),
    max_calls=st.integers(1, 8),
    max_sampled_tokens=st.integers(1, 150),
)
def test_no_schedule_samples_more_than_was_allowed(
    asked: list[tuple[int, int]], max_calls: int, max_sampled_tokens: int
) -> None:
    """Each answer is either sampled and in the trace, or final and in none; nothing is sampled after a final one."""

    async def run() -> None:
        turns = [say("x" * length) for length, _ in asked]
        engine = ScriptedEngine(TurnList(renderer(), turns), vocab_size=renderer().vocab_size, context_length=4096)
        limits = GatewaySettings(max_calls=max_calls, max_sampled_tokens=max_sampled_tokens)
        session = GatewaySession("s", engine, renderer(), limits)
        final = 0
        for number, (_, max_tokens) in enumerate(asked):
            message = {"role": "user", "content": f"{number}"}
            reply = await take(session, ChatRequest(messages=(message,), max_tokens=max_tokens))
            final += reply.completion_tokens == 0
            assert (reply.completion_tokens == 0) == bool(final)
        record = await session.close()
        calls = record.trace.calls
        assert len(calls) == len(asked) - final <= max_calls
        assert record.trace.sampled_tokens == engine.sampled_tokens <= max_sampled_tokens
        assert final == 0 or len(calls) == max_calls or record.trace.sampled_tokens == max_sampled_tokens
        assert record.truncated or not final
        assert record.counters.get("not_sampled", 0) == final

    asyncio.run(run())
