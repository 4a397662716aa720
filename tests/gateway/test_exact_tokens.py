"""Invariants 1 and 2 at the gateway: exact tokens, and none lost, whatever agents and models do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import msgspec
import numpy as np
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from longrein.engines.scripted import ScriptedEngine, TurnList
from longrein.gateway import ChatRequest, GatewaySettings
from longrein.gateway.session import GatewaySession
from longrein.types import Message
from tests.gateway.rig import BASH, Rig, assert_exact, renderer, rig

SPECIALS = 3
# Each example opens a gateway: shrinking one costs a minute, and a handful of steps reads well as it is.
QUICK: dict[str, Any] = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.reuse, Phase.generate],
    "report_multiple_bugs": False,
}
texts = st.text(st.characters(codec="utf-8"), max_size=12)
garbage = st.lists(st.integers(SPECIALS, 258), min_size=1, max_size=12).map(lambda ids: np.asarray(ids, np.int32))
calls = st.lists(st.fixed_dictionaries({"command": texts}), min_size=1, max_size=2).map(
    lambda all_arguments: [
        {"id": "x", "type": "function", "function": {"name": "bash", "arguments": json.dumps(arguments)}}
        for arguments in all_arguments
    ]
)
messages = st.builds(
    lambda content, tool_calls: {"role": "assistant", "content": content, "tool_calls": tool_calls},
    texts,
    st.just([]) | calls,
)


class Step(msgspec.Struct, frozen=True):
    """One turn of one of the conversations: what the model says, and how the agent goes on."""

    conversation: int
    says: Any
    max_tokens: int
    compact: bool
    drop_ids: bool
    adds: str


steps = st.builds(
    Step,
    conversation=st.integers(0, 2),
    says=messages | garbage,
    max_tokens=st.sampled_from([1, 5, 400]),
    compact=st.booleans(),
    drop_ids=st.booleans(),
    adds=texts,
)


def echo(reply: Message, step: Step) -> Message:
    """The assistant turn as an agent sends it back."""
    echoed = {**reply, "content": reply["content"] or ("" if step.compact else None)}
    if reply.get("tool_calls"):
        echoed["tool_calls"] = [
            {
                "id": f"own{index}" if step.drop_ids else call["id"],
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(json.loads(call["function"]["arguments"]), indent=int(step.compact)),
                },
            }
            for index, call in enumerate(reply["tool_calls"])
        ]
    return echoed


def follow_up(echoed: Message, step: Step) -> list[Message]:
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": step.adds} for call in echoed.get("tool_calls", [])
    ]
    return results or [{"role": "user", "content": step.adds}]


async def drive(r: Rig, script: list[Step]) -> list[list[int]]:
    """Play the script; returns the call ids of each conversation."""
    talks: list[list[Message]] = [[{"role": "user", "content": f"task {index}"}] for index in range(3)]
    call_ids: list[list[int]] = [[], [], []]
    async with aiohttp.ClientSession() as http:
        for index, step in enumerate(script):
            r.engine.tell("s", [step.says])
            body = {"messages": talks[step.conversation], "tools": [BASH], "max_tokens": step.max_tokens}
            async with http.post(r.url, json=body) as response:
                reply = (await response.json())["choices"][0]["message"]
            echoed = echo(reply, step)
            talks[step.conversation] += [echoed, *follow_up(echoed, step)]
            call_ids[step.conversation].append(index)
    return call_ids


NO_TEXT = Step(0, np.asarray([190, 189, 188], np.int32), 400, compact=False, drop_ids=False, adds="on")


@settings(max_examples=25, **QUICK)
@given(st.lists(steps, min_size=1, max_size=7))
@example([NO_TEXT, NO_TEXT])
def test_every_prompt_is_exactly_what_the_engine_saw(script: list[Step]) -> None:
    async def run() -> None:
        async with rig([]) as r:
            call_ids = await drive(r, script)
            trace = r.trace()
            assert_exact(trace, r.engine)
            # One conversation is one branch, however it was interleaved with others.
            for ids in call_ids:
                parents = [trace.calls[call_id].parent_id for call_id in ids]
                assert parents == [None, *ids][: len(ids)]

    asyncio.run(run())


@settings(max_examples=15, **QUICK)
@given(st.lists(st.tuples(steps, st.booleans()), min_size=1, max_size=6))
@example([(NO_TEXT, True), (NO_TEXT, False)])
def test_every_token_the_engine_delivered_is_in_the_trace(script: list[tuple[Step, bool]]) -> None:
    """Also of answers that never reached the agent."""

    async def run() -> None:
        chat = renderer()
        engine = ScriptedEngine(TurnList(chat), vocab_size=chat.vocab_size, context_length=4096)
        session = GatewaySession("s", engine, chat, GatewaySettings())
        for index, (step, arrives) in enumerate(script):
            engine.tell("s", [step.says])
            user = {"role": "user", "content": f"{index} {step.adds}"}
            ticket = await session.admit(ChatRequest(messages=(user,), tools=(BASH,), max_tokens=step.max_tokens))
            await ticket.answer()
            if arrives:
                ticket.delivered()
            ticket.leave()
        trace = (await session.close()).trace
        assert trace.sampled_tokens == engine.sampled_tokens
        assert all(call.completion.logprobs.size == call.completion.token_ids.size for call in trace.calls)
        assert [call.delivered for call in trace.calls] == [arrives for _, arrives in script]

    asyncio.run(run())


def test_rendering_again_would_not_have_matched() -> None:
    """Why the stream is extended and not rendered: bytes that are no text do not survive the way through a message."""
    chat = renderer()
    sampled = np.asarray([190, 189, 188, 2], np.int32)
    reply = chat.parse(completion=sampled, prompt=chat.render(({"role": "user", "content": "x"},), ()), tools=())
    again = chat.encode_reply({"role": "assistant", "content": reply.content})
    assert not np.array_equal(again, sampled)
