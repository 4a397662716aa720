"""The scripted engine is an engine: limits, stops, cancellation, versions; and says what it is told."""

from __future__ import annotations

import asyncio
import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest

from longrein.engines.base import Engine, EngineRequest, EngineSpec
from longrein.engines.render import ChatRenderer
from longrein.engines.scripted import Delay, Entry, Fault, ScriptedEngine, ScriptedEngineSpec, TurnList
from longrein.errors import ContextLengthError, EngineError, EngineRequestError
from longrein.types import Sampling
from tests import tiny

HELLO = {"role": "assistant", "content": "hello"}
BYE = {"role": "assistant", "content": "bye"}


@cache
def chat() -> ChatRenderer:
    return ChatRenderer.of(tiny.tokenizer())


def engine(*turns: Entry, context_length: int = 100) -> ScriptedEngine:
    return ScriptedEngine(TurnList(chat(), turns), vocab_size=chat().vocab_size, context_length=context_length)


def request(conversation: str = "c", prompt: tuple[int, ...] = (5, 6, 7), **sampling: Any) -> EngineRequest:
    options = {"max_tokens": 50, "stop_token_ids": chat().stop_token_ids, **sampling}
    return EngineRequest(
        request_id=f"{conversation}-{prompt}",
        conversation_id=conversation,
        prompt_ids=np.asarray(prompt, np.int32),
        sampling=Sampling(**options),
    )


async def test_turns_in_order_per_conversation_and_the_last_repeats() -> None:
    e: Engine = engine(HELLO, BYE)
    said = [chat().decode((await e.generate(request(talk))).token_ids) for talk in ("a", "b", "a", "a")]
    assert said == ["hello<|im_end|>", "hello<|im_end|>", "bye<|im_end|>", "bye<|im_end|>"]


async def test_tell_replaces_the_turns_of_one_session() -> None:
    e = engine(HELLO)
    e.tell("a", [BYE])
    assert chat().decode((await e.generate(request("a"))).token_ids) == "bye<|im_end|>"
    assert chat().decode((await e.generate(request("b"))).token_ids) == "hello<|im_end|>"
    with pytest.raises(EngineRequestError, match="tell"):
        await engine().generate(request())


async def test_completion_has_the_engines_form() -> None:
    e = engine(HELLO)
    completion = await e.generate(request())
    assert completion.token_ids.dtype == np.int32 and completion.logprobs.dtype == np.float32
    assert completion.token_ids.shape == completion.logprobs.shape
    assert np.all(np.isfinite(completion.logprobs)) and np.all(completion.logprobs < 0)
    assert completion.finish_reason == "stop"
    again = await e.generate(request())
    np.testing.assert_array_equal(completion.logprobs, again.logprobs)
    assert e.sampled_tokens == completion.token_ids.size
    assert (await e.info()).vocab_size == 259


async def test_limits() -> None:
    cut = await engine(HELLO).generate(request(max_tokens=3))
    assert cut.finish_reason == "length" and cut.token_ids.size == 3
    room = await engine(HELLO, context_length=5).generate(request())
    assert room.finish_reason == "length" and room.token_ids.size == 2
    stopped = await engine(np.asarray([9, 2, 9], np.int32)).generate(request())
    assert stopped.token_ids.tolist() == [9, 2]
    with pytest.raises(ContextLengthError):
        await engine(HELLO, context_length=3).generate(request())
    for prompt in [(), (259,), (-1,)]:
        with pytest.raises(EngineRequestError):
            await engine(HELLO).generate(request(prompt=prompt))


async def test_delays_faults_and_cancellation() -> None:
    e = engine(Delay(seconds=0.01), Fault(error=EngineError("down")), Delay(seconds=60), BYE)
    with pytest.raises(EngineError, match="down"):
        await e.generate(request())
    waiting = asyncio.create_task(e.generate(request()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(e.cancelled) == 1
    assert chat().decode((await e.generate(request())).token_ids) == "bye<|im_end|>"


async def test_versions_at_start_and_end() -> None:
    e = engine(Delay(seconds=0.02), HELLO)
    e.policy_version = 4
    asking = asyncio.create_task(e.generate(request()))
    await asyncio.sleep(0)
    e.policy_version = 5
    completion = await asking
    assert (completion.min_policy_version, completion.max_policy_version) == (4, 5)


async def test_spec_travels(tmp_path: Any) -> None:
    tiny.tokenizer().save_pretrained(tmp_path)
    spec: EngineSpec = ScriptedEngineSpec(model=str(tmp_path), turns=(HELLO,), conversations={"a": (BYE,)})
    e = await pickle.loads(pickle.dumps(spec)).connect()
    assert chat().decode((await e.generate(request("a"))).token_ids) == "bye<|im_end|>"
    assert chat().decode((await e.generate(request("b"))).token_ids) == "hello<|im_end|>"
    await e.forget("a")
    await e.close()
    assert e.forgotten == ["a"]
