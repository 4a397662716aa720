"""Invariant 4 at the gateway: an engine's faults are mended where they can be; else the session has failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import anthropic
import msgspec
import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.engines.base import EngineRequest
from longrein.engines.scripted import Delay, Fault, ScriptedEngine, TurnList
from longrein.errors import EngineError, EngineRequestError, GatewayRequestError
from longrein.gateway import ChatRequest, GatewaySettings
from longrein.gateway.completions import check_completion
from longrein.gateway.session import GatewaySession, take
from longrein.types import Completion, Sampling
from tests.gateway.rig import PATIENCE_S, USER, renderer, rig, rig_of, say, until
from tests.gateway.tongues import TONGUES, Tongue, in_every_tongue

GONE = Fault(error=EngineError("the engine burnt down"))


@in_every_tongue
async def test_two_faults_are_invisible(tongue: Tongue) -> None:
    async with rig([GONE, GONE, say("back")]) as r:
        heard = await tongue.ask(r, "a")
        assert heard.status == 200 and "back" in heard.text
        record = await r.gateway.close_session("s")
        assert record.failure is None and record.counters["engine_retries"] == 2
        assert len(record.trace.calls) == 1 and record.trace.calls[0].delivered


@in_every_tongue
async def test_three_faults_fail_the_session_and_nothing_is_asked_any_more(tongue: Tongue) -> None:
    async with rig([say("one"), GONE]) as r:
        await tongue.ask(r, "a")
        heard = await tongue.ask(r, "b")
        assert tongue.refuses(heard) and "the engine failed" in heard.text
        assert heard.status == (200 if tongue.stream else 503)
        r.engine.tell("s", [say("back")])
        again = await tongue.ask(r, "c")
        assert again.status == 503 and tongue.refuses(again)
        assert again.headers["x-should-retry"] == "false" and "retry-after" not in again.headers
        assert len(r.engine.requests) == 4
        async with asyncio.timeout(PATIENCE_S):
            await r.gateway.until_over("s")
        record = await r.gateway.close_session("s")
        assert record.failure is not None and record.failure.kind == "engine" and not record.truncated
        assert "burnt down" in record.failure.message and "burnt down" not in heard.text + again.text
        assert len(record.trace.calls) == 1


@in_every_tongue
async def test_engine_that_hangs_is_asked_again(tongue: Tongue) -> None:
    async with rig([Delay(seconds=3600), say("one")], engine_timeout_s=0.1) as r:
        heard = await tongue.ask(r, "a")
        assert heard.status == 200 and "one" in heard.text
        assert len(r.engine.cancelled) == 1
        record = await r.gateway.close_session("s")
        assert record.failure is None and record.counters["engine_timeouts"] == 1


async def test_engine_that_hangs_for_ever_fails_the_session_in_bounded_time() -> None:
    async with rig([Delay(seconds=3600)] * 9, engine_timeout_s=0.05) as r:
        began = time.monotonic()
        with pytest.raises(GatewayRequestError, match="the engine failed"):
            await r.gateway.complete("s", ChatRequest(messages=(USER,)))
        assert time.monotonic() - began < PATIENCE_S
        record = await r.gateway.close_session("s")
        assert record.failure is not None and "no answer within 0.05 s" in record.failure.message
        assert len(r.engine.cancelled) == len(r.engine.requests) == 3


async def test_what_the_engine_refuses_is_not_asked_again() -> None:
    async with rig([Fault(error=EngineRequestError("bad ids"))]) as r:
        with pytest.raises(GatewayRequestError):
            await r.gateway.complete("s", ChatRequest(messages=(USER,)))
        assert len(r.engine.requests) == 1


async def test_engines_own_time_limit_is_no_limit_of_ours() -> None:
    """A TimeoutError that an engine lets out is its bug, and reaches the owner of the session."""

    class Late(TurnList):
        async def reply(self, request: EngineRequest) -> Any:
            raise TimeoutError("mine")

    engine = ScriptedEngine(Late(renderer()), vocab_size=renderer().vocab_size, context_length=4096)
    session = GatewaySession("s", engine, renderer(), GatewaySettings())
    with pytest.raises(TimeoutError, match="mine"):
        await take(session, ChatRequest(messages=(USER,)))
    assert session.trace().calls == () and len(engine.requests) == 1


async def test_official_clients_do_not_retry_a_session_that_failed() -> None:
    async with rig([GONE]) as r:
        key, base = r.endpoint.api_key, r.endpoint.base_url
        counted = r.gateway._keys.session("s").counters
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=key, max_retries=4) as client:
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="policy", messages=[USER])
            assert counted["refused"] == 1
            with pytest.raises(openai.InternalServerError):
                await client.responses.create(model="policy", input="go")
            assert counted["refused"] == 2
        async with anthropic.AsyncAnthropic(base_url=base, api_key=key, max_retries=4) as client:
            with pytest.raises(anthropic.InternalServerError):
                await client.messages.create(model="policy", max_tokens=9, messages=[{"role": "user", "content": "a"}])
            assert counted["refused"] == 3
        assert len(r.engine.requests) == 3


REQUEST = EngineRequest(
    request_id="r", conversation_id="s", prompt_ids=np.arange(3, dtype=np.int32), sampling=Sampling(max_tokens=8)
)
GOOD = Completion(
    token_ids=np.array([5, 6, 7], np.int32),
    logprobs=np.array([-0.5, 0.0, -2.0], np.float32),
    finish_reason="stop",
    min_policy_version=1,
    max_policy_version=2,
)


def logprobs(*values: float) -> dict[str, Any]:
    return {"logprobs": np.array(values, np.float32)}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a list": ({"token_ids": [5, 6, 7]}, "token_ids is list"),
    "int64": ({"token_ids": np.array([5, 6, 7])}, "token_ids is int64"),
    "float64": ({"logprobs": np.array([-0.5, -1.0, -2.0])}, "logprobs is float64"),
    "two rows": ({"token_ids": np.ones((1, 3), np.int32)}, "shape (1, 3)"),
    "a logprob too few": (logprobs(-1.0, -1.0), "3 token ids with 2 logprobs"),
    "nothing": ({"token_ids": np.array([], np.int32), **logprobs()}, "0 tokens"),
    "too many": ({"token_ids": np.ones(9, np.int32), **logprobs(*[-1.0] * 9)}, "9 tokens where 1 to 8"),
    "id over the vocabulary": ({"token_ids": np.array([5, 100, 7], np.int32)}, "token ids from 5 to 100"),
    "negative id": ({"token_ids": np.array([5, -1, 7], np.int32)}, "token ids from -1 to 7"),
    "nan": (logprobs(-1.0, float("nan"), -1.0), "logprobs from nan"),
    "minus infinity": (logprobs(-1.0, float("-inf"), -1.0), "logprobs from -inf"),
    "a probability over 1": (logprobs(-1.0, 0.1, -1.0), "to 0.1"),
    "versions backwards": ({"min_policy_version": 3}, "policy versions 3 to 2"),
    "negative version": ({"min_policy_version": -1}, "policy versions -1 to 2"),
    "reason": ({"finish_reason": "abort"}, "finish_reason 'abort'"),
}


def test_good_completion_passes() -> None:
    check_completion(GOOD, REQUEST, 100)
    check_completion(msgspec.structs.replace(GOOD, **logprobs(-1.0, 1e-6, -1.0)), REQUEST, 100)


@pytest.mark.parametrize("case", BAD)
def test_malformed_completion_is_an_engine_error_that_says_what_is_wrong(case: str) -> None:
    changes, says = BAD[case]
    with pytest.raises(EngineError) as caught:
        check_completion(msgspec.structs.replace(GOOD, **changes), REQUEST, 100)
    assert says in str(caught.value) and not isinstance(caught.value, EngineRequestError)


@settings(max_examples=100, deadline=None)
@given(
    ids=st.lists(st.integers(-2, 101), max_size=10),
    raw=st.lists(st.floats(-5, 0.5, width=32) | st.just(float("nan")), max_size=10),
)
def test_exactly_the_sound_ones_pass(ids: list[int], raw: list[float]) -> None:
    completion = msgspec.structs.replace(GOOD, token_ids=np.array(ids, np.int32), logprobs=np.array(raw, np.float32))
    sound = len(ids) == len(raw) and 1 <= len(ids) <= 8 and all(0 <= token < 100 for token in ids)
    if sound and all(value <= 1e-3 for value in raw):
        check_completion(completion, REQUEST, 100)
    else:
        with pytest.raises(EngineError, match="malformed completion"):
            check_completion(completion, REQUEST, 100)


class Garbling(ScriptedEngine):
    """Spoils its first answers."""

    def __init__(self, spoil: Callable[[Completion], Completion], times: int) -> None:
        super().__init__(TurnList(renderer(), [say("one")]), vocab_size=renderer().vocab_size, context_length=4096)
        self.spoil = spoil
        self.times = times

    async def generate(self, request: EngineRequest) -> Completion:
        completion = await super().generate(request)
        self.times -= 1
        return self.spoil(completion) if self.times >= 0 else completion


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("times", [2, 3])
async def test_malformed_completions_are_asked_for_again_and_never_stored(case: str, times: int) -> None:
    changes, _ = BAD[case]
    engine = Garbling(lambda completion: msgspec.structs.replace(completion, **changes), times)
    session = GatewaySession("s", engine, renderer(), GatewaySettings(retry_delay_s=0.001, max_tokens=8))
    if times == 2:
        assert (await take(session, ChatRequest(messages=(USER,)))).message["content"] == "one"
        record = await session.close()
        assert record.failure is None and len(record.trace.calls) == 1
    else:
        with pytest.raises(GatewayRequestError, match="the engine failed"):
            await take(session, ChatRequest(messages=(USER,)))
        record = await session.close()
        assert record.failure is not None and "malformed completion" in record.failure.message
        assert record.trace.calls == ()
    assert len(engine.requests) == 3


class FailsOne(TurnList):
    """One conversation fails while another one is under way."""

    async def reply(self, request: EngineRequest) -> Any:
        if renderer().render(({"role": "user", "content": "fail"},), ()).size == request.prompt_ids.size:
            raise EngineError("gone")
        await asyncio.sleep(3600)


async def test_failed_session_asks_nothing_more_of_the_engine() -> None:
    async with rig_of(FailsOne(renderer())) as r:
        other = asyncio.create_task(TONGUES["chat"].ask(r, "something long"))
        await until(lambda: r.engine.requests)
        assert (await TONGUES["chat"].ask(r, "fail")).status == 503
        assert (await other).status == 503
        assert len(r.engine.requests) == 4 and len(r.engine.cancelled) == 1


class Stuck(ScriptedEngine):
    """Never comes back from ``forget``."""

    async def forget(self, conversation_id: str) -> None:
        await asyncio.sleep(3600)


async def test_closing_does_not_wait_for_an_engine_that_hangs() -> None:
    engine = Stuck(TurnList(renderer(), [say("one")]), vocab_size=renderer().vocab_size, context_length=4096)
    session = GatewaySession("s", engine, renderer(), GatewaySettings())
    await take(session, ChatRequest(messages=(USER,)))
    began = time.monotonic()
    record = await session.close()
    assert time.monotonic() - began < PATIENCE_S and len(record.trace.calls) == 1 and record.failure is None
