"""Invariant 6: a request that comes again is shared, replayed or sampled afresh, and never trained twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longrein.engines.base import EngineRequest
from longrein.engines.scripted import Delay, Entry, ScriptedEngine
from longrein.gateway import ChatRequest, GatewaySettings
from longrein.gateway.session import GatewaySession
from longrein.gateway.ticket import Ticket
from longrein.types import I32
from tests.gateway.held import held, waiting
from tests.gateway.rig import USER, Rig, renderer, rig, rig_of, say, until


class Gated:
    """A script that says something new each time, once its prompt is let go."""

    def __init__(self) -> None:
        self.gates: dict[bytes, asyncio.Event] = {}
        self.count = 0

    def tell(self, conversation_id: str, turns: Sequence[Entry]) -> None:
        raise NotImplementedError

    async def reply(self, request: EngineRequest) -> I32:
        self.count += 1
        said = renderer().encode_reply(say(f"answer {self.count}"))
        await self.gates.setdefault(request.prompt_ids.tobytes(), asyncio.Event()).wait()
        return said


def ask_for(prompt: int) -> ChatRequest:
    return ChatRequest(messages=({"role": "user", "content": f"prompt {prompt}"},))


class Schedule:
    """Runs operations against a session and, beside it, a model of what must happen."""

    def __init__(self, grace_s: float) -> None:
        self.script = Gated()
        self.engine = ScriptedEngine(self.script, vocab_size=renderer().vocab_size, context_length=4096)
        self.session = GatewaySession("s", self.engine, renderer(), GatewaySettings(abandon_grace_s=grace_s))
        self.cancels = grace_s == 0
        self.tickets: list[Ticket] = []
        self.flights: dict[int, set[int]] = {}
        """Prompt -> tickets that wait for its generation; none while it is only kept for a moment longer."""
        self.answered: dict[int, int] = {}
        """Ticket -> call."""
        self.stored: list[int] = []
        """Prompt of each stored call."""
        self.delivered: set[int] = set()
        self.generations = 0
        self.cancelled = 0

    async def ask(self, prompt: int) -> None:
        ticket = len(self.tickets)
        self.tickets.append(await self.session.admit(ask_for(prompt)))
        latest = max((call for call, of in enumerate(self.stored) if of == prompt), default=None)
        if prompt in self.flights:
            self.flights[prompt].add(ticket)
        elif latest is not None and latest not in self.delivered:
            self.answered[ticket] = latest
        else:
            self.generations += 1
            self.flights[prompt] = {ticket}
        await settle()

    async def finish(self, prompt: int) -> None:
        if prompt not in self.flights:
            return
        tickets = self.flights.pop(prompt)
        gate = self.script.gates[renderer().render(ask_for(prompt).messages, ()).tobytes()]
        gate.set()
        await settle()
        gate.clear()
        self.answered.update(dict.fromkeys(tickets, len(self.stored)))
        self.stored.append(prompt)

    async def deliver(self, ticket: int) -> None:
        if ticket in self.answered:
            self.tickets[ticket].delivered()
            self.delivered.add(self.answered[ticket])

    async def drop(self, ticket: int) -> None:
        for prompt, tickets in list(self.flights.items()):
            if ticket in tickets:
                tickets.discard(ticket)
                self.tickets[ticket].leave()
                if not tickets and self.cancels:
                    del self.flights[prompt]
                    self.cancelled += 1
        await settle()

    async def check(self) -> None:
        calls = self.session.trace().calls
        assert len(self.engine.requests) == self.generations
        assert len(self.engine.cancelled) == self.cancelled
        assert [call.messages[0]["content"] for call in calls] == [f"prompt {prompt}" for prompt in self.stored]
        assert {call.call_id for call in calls if call.delivered} == self.delivered
        assert self.session.trace().sampled_tokens == self.engine.sampled_tokens
        assert len({call.reply["content"] for call in calls}) == len(calls)
        for ticket, call in self.answered.items():
            answer = asyncio.ensure_future(self.tickets[ticket].answer())
            await settle()
            assert answer.done() and answer.result().message == calls[call].reply
        for call in calls:
            twins = [other for other in calls if other.messages == call.messages]
            assert all(np.array_equal(twin.prompt_delta, call.prompt_delta) for twin in twins)
            assert all(twin.parent_id == call.parent_id for twin in twins)


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


operations = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 1)),
    st.tuples(st.just("finish"), st.integers(0, 1)),
    st.tuples(st.just("deliver"), st.integers(0, 7)),
    st.tuples(st.just("drop"), st.integers(0, 7)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(operations, max_size=24), st.sampled_from([0.0, 3600.0]))
@example([("ask", 0), ("ask", 0), ("finish", 0), ("deliver", 0)], 0.0)
@example([("ask", 0), ("finish", 0), ("ask", 0), ("deliver", 1), ("ask", 0), ("finish", 0)], 0.0)
@example([("ask", 0), ("drop", 0), ("ask", 0), ("finish", 0), ("deliver", 1), ("ask", 0)], 0.0)
@example([("ask", 0), ("drop", 0), ("ask", 0), ("finish", 0), ("deliver", 1), ("ask", 0)], 3600.0)
@example([("ask", 0), ("drop", 0), ("finish", 0), ("ask", 0), ("deliver", 1)], 3600.0)
def test_any_schedule_of_retries(script: list[tuple[str, int]], grace_s: float) -> None:
    """A generation whose clients have all left ends at once, or is kept for who asks again."""

    async def run() -> None:
        schedule = Schedule(grace_s)
        for operation, at in script:
            if operation in ("ask", "finish") or at < len(schedule.tickets):
                await getattr(schedule, operation)(at)
        await schedule.check()
        await schedule.session.close()

    asyncio.run(run())


async def post(r: Rig, http: aiohttp.ClientSession, **fields: Any) -> str:
    async with http.post(r.url, json={"messages": [USER], **fields}) as response:
        return await response.text()


async def test_request_resent_while_in_flight_shares_one_generation() -> None:
    async with held() as (r, script), aiohttp.ClientSession() as http:
        asking = [asyncio.create_task(post(r, http)) for _ in range(3)]
        await until(lambda: waiting(r) == 3)
        script.go.set()
        assert all("answer 1" in answer for answer in await asyncio.gather(*asking))
        assert len(r.engine.requests) == len(r.trace().calls) == 1
        record = await r.gateway.close_session("s")
        assert record.counters["coalesced"] == 2


async def test_delivered_and_asked_again_is_a_fresh_sibling() -> None:
    async with rig([say("one"), say("two")]) as r, aiohttp.ClientSession() as http:
        assert "one" in await post(r, http)
        assert "two" in await post(r, http, stream=True)
        assert [call.branch_reason for call in r.trace().calls] == ["first", "repeated"]


async def test_client_that_leaves_alone_cancels_the_engine_and_stores_nothing() -> None:
    for stream in (False, True):
        turns = [Delay(seconds=3600), say("one"), say("two")]
        async with rig(turns, abandon_grace_s=0.05) as r, aiohttp.ClientSession() as http:
            asking = asyncio.create_task(post(r, http, stream=stream))
            await until(lambda: r.engine.requests)
            asking.cancel()
            await until(lambda: r.engine.cancelled)
            assert not r.trace().calls
            assert "one" in await post(r, http)
            assert [call.delivered for call in r.trace().calls] == [True]


async def test_one_of_two_waiting_clients_leaves() -> None:
    async with held(abandon_grace_s=0.0) as (r, script), aiohttp.ClientSession() as http:
        leaving, staying = (asyncio.create_task(post(r, http)) for _ in range(2))
        await until(lambda: waiting(r) == 2)
        leaving.cancel()
        await until(lambda: waiting(r) == 1)
        script.go.set()
        assert "answer 1" in await staying
        assert not r.engine.cancelled and len(r.trace().calls) == 1


class HangUp(Gated):
    """Says its first answer at the very moment the client hangs up."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[asyncio.StreamWriter] = []

    async def reply(self, request: EngineRequest) -> I32:
        self.count += 1
        for writer in self.writers:
            writer.transport.abort()
        return renderer().encode_reply(say(f"answer {self.count}"))


async def test_finished_but_undelivered_answer_is_replayed_and_stored_once() -> None:
    for stream in (False, True):
        script = HangUp()
        async with rig_of(script) as r, aiohttp.ClientSession() as http:
            _, writer = await asyncio.open_connection("127.0.0.1", r.endpoint.port)
            script.writers.append(writer)
            body = json.dumps({"messages": [USER], "stream": stream})
            head = f"POST {r.url} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.replace(f"http://127.0.0.1:{r.endpoint.port}", "").encode() + body.encode())
            await until(lambda: r.trace().calls and not r.gateway._server._server.server_state.connections)
            assert [call.delivered for call in r.trace().calls] == [False]
            script.writers.clear()
            assert "answer 1" in await post(r, http, stream=stream)
            assert [call.delivered for call in r.trace().calls] == [True]
            assert len(r.engine.requests) == 1
            assert "answer 2" in await post(r, http)
