"""One session at the gateway: lets requests in, asks the engine, stores what was sampled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import msgspec

from longrein.engines.base import Engine, EngineRequest
from longrein.engines.render import ChatRenderer
from longrein.errors import ContextLengthError, EngineError, GatewayRequestError, PromptTooLongError, boundary
from longrein.gateway.addresses import NativeIds
from longrein.gateway.budget import Budget, Limit
from longrein.gateway.bugs import BugTrap
from longrein.gateway.crowd import Crowd
from longrein.gateway.dialect import ChatReply, ChatRequest
from longrein.gateway.ending import Ending
from longrein.gateway.fit import tokens_too_many
from longrein.gateway.patience import PatientEngine
from longrein.gateway.prompt import Prompt, Prompts
from longrein.gateway.reply import as_message, as_reply, limit_reply, stop_of
from longrein.gateway.seeds import call_seed
from longrein.gateway.settings import GatewaySettings
from longrein.gateway.ticket import Answered, Flight, LiveTicket, ReadyTicket, Ticket
from longrein.gateway.tree import CallTree, History, Sampled
from longrein.types import Completion, Failure, Sampling, Timing, Trace

CLOSE_TIMEOUT_S = 0.5
FOR_GOOD = (400, 413)
"""Refusals of what an agent wants of the model, which it will get again. Other paths may be mere telemetry."""


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a session."""

    trace: Trace
    truncated: bool
    """A budget ran out, or the context did and the agent did not go on with less, or it went on only to be refused."""
    failure: Failure | None
    """The engine failed: the rollout is unscorable."""
    counters: dict[str, float]


class GatewaySession:
    """All calls of one session. Everything happens in the event loop's thread."""

    def __init__(self, session_id: str, engine: Engine, renderer: ChatRenderer, settings: GatewaySettings) -> None:
        self.session_id = session_id
        self.counters: Counter[str] = Counter()
        self.ending = Ending()
        self.bugs = BugTrap(self.ending.end)
        self.crowd = Crowd(settings.http.max_requests)
        self._engine = engine
        self._patient = PatientEngine(engine, settings, self.counters)
        self._budget = Budget(settings)
        self._renderer = renderer
        self._settings = settings
        self._tree = CallTree(session_id)
        self._native = NativeIds()
        self._prompts = Prompts(renderer, self._tree, self._native)
        self._flights: dict[bytes, Flight] = {}
        self._answers: list[Answered] = []
        """By call id."""
        self._cut_short = False
        """A budget is spent: nothing that comes later makes up for it."""
        self._told_full = False
        """The latest news of the context: a prompt did not fit, and nothing was sampled since."""
        self._closed = False

    def count_refusal(self, error: GatewayRequestError) -> None:
        """A request of this session was refused. It changes nothing else, but an agent that goes on so is ended."""
        self.counters["refused"] += 1
        self.counters[f"refused_{error.code}"] += 1
        if self._budget.left_s <= 0:
            self._cut_short = True
            self.ending.count_final_answer()
        elif error.status in FOR_GOOD and not self._flights:
            self.ending.count_refusal()

    def trace(self) -> Trace:
        """The trace so far."""
        return self._tree.snapshot()

    async def admit(self, request: ChatRequest) -> Ticket:
        """Let a request in.

        The same request while its answer is under way shares that answer; while a finished answer never reached
        the agent, gets it again; otherwise it is sampled, as a sibling if it was answered before. Once a budget is
        spent, the answer is one that nobody sampled.

        Raises:
            GatewayRequestError: no room in the context, a conversation that the template refuses, or a session
                whose engine has failed.
        """
        self._check_open()
        wanted = min(request.max_tokens or self._settings.max_tokens, self._settings.max_tokens)
        history = self._history(request, wanted)
        if ticket := self._without_prompt(request, history):
            return ticket
        prompt = await self._prompts.build(request, history)
        # Much may have happened in the time that a large prompt takes: the same request may have come again.
        self._check_open()
        if ticket := self._without_prompt(request, history):
            return ticket
        if prompt.ids.size >= self._settings.context_length:
            return ReadyTicket(self._over_context(prompt.ids.size))
        return LiveTicket(self._start(request, history, prompt, wanted))

    def _check_open(self) -> None:
        if self._closed:
            raise GatewayRequestError("this session is closed", status=401, code="invalid_api_key")
        if self.ending.failure is not None:
            raise _engine_failed()

    def _without_prompt(self, request: ChatRequest, history: History) -> Ticket | None:
        """Whatever needs no prompt of its own."""
        if flight := self._flights.get(history.key):
            self.counters["coalesced"] += 1
            return LiveTicket(flight)
        if call := self._tree.undelivered(history.key):
            self.counters["replayed"] += 1
            return ReadyTicket(self._answers[call.call_id])
        if limit := self._budget.spent():
            return ReadyTicket(self._final(limit))
        if tokens := tokens_too_many(request, self._settings.context_length, self._renderer.longest_token):
            return ReadyTicket(self._over_context(tokens))
        return None

    async def count(self, request: ChatRequest) -> int:
        """How many tokens the prompt of this request would have. Nothing is sampled or stored.

        Raises:
            GatewayRequestError: a conversation that the template refuses.
        """
        return (await self._prompts.build(request, self._history(request, 0))).ids.size

    async def close(self) -> SessionRecord:
        """Cancel what is in flight, let the engine forget the session, and hand over the record."""
        self._closed = True
        if tasks := self._cancel_flights():
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
        with boundary():
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._engine.forget(self.session_id)
        self.bugs.check()
        return SessionRecord(
            trace=self.trace(),
            truncated=self._cut_short or self._told_full or (self.ending.unheard and bool(self._answers)),
            failure=self.ending.failure,
            counters={name: float(count) for name, count in self.counters.items()},
        )

    def _history(self, request: ChatRequest, wanted: int) -> History:
        try:
            return self._tree.history(request, wanted)
        except RecursionError as error:
            raise GatewayRequestError("the request is nested too deeply", status=400, code="invalid_request") from error

    def _start(self, request: ChatRequest, history: History, prompt: Prompt, wanted: int) -> Flight:
        number = self._budget.start_call()
        room = self._settings.context_length - prompt.ids.size
        self.counters["started"] += 1
        self.counters[f"branch_{prompt.place.branch_reason}" if prompt.place.branch_reason else "extended"] += 1
        engine_request = EngineRequest(
            request_id=f"{self.session_id}:{number}",
            conversation_id=self.session_id,
            prompt_ids=prompt.ids,
            sampling=Sampling(
                max_tokens=min(wanted, room, self._budget.left_tokens),
                temperature=self._settings.temperature,
                top_p=self._settings.top_p,
                top_k=self._settings.top_k,
                min_p=self._settings.min_p,
                stop=request.stop,
                stop_token_ids=self._renderer.stop_token_ids,
                seed=call_seed(self._settings.seed, self.session_id, number),
            ),
        )
        task = asyncio.create_task(self._answer(request, history, prompt, engine_request))
        flight = Flight(task, self._settings.abandon_grace_s, on_abandoned=lambda: self._abandon(history.key))
        self._flights[history.key] = flight
        task.add_done_callback(lambda _: self._land(history.key, flight))
        return flight

    def _abandon(self, key: bytes) -> None:
        """At once, so that the same request a moment later starts anew instead of joining what is being cancelled."""
        self.counters["cancelled"] += 1
        del self._flights[key]

    def _land(self, key: bytes, flight: Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not flight.task.cancelled():
            # Looked at here, because everybody who waited may have left.
            flight.task.exception()

    async def _answer(
        self, request: ChatRequest, history: History, prompt: Prompt, engine_request: EngineRequest
    ) -> Answered:
        with self.bugs:
            return await self._sample(request, history, prompt, engine_request)

    async def _sample(
        self, request: ChatRequest, history: History, prompt: Prompt, engine_request: EngineRequest
    ) -> Answered:
        started_at_s, began = time.time(), time.perf_counter()
        session_time = asyncio.timeout(self._budget.left_s)
        try:
            async with session_time:
                completion = await self._patient.generate(engine_request)
        except ContextLengthError:
            return self._over_context(prompt.ids.size)
        except EngineError as error:
            self._fail(error)
            raise _engine_failed() from error
        except TimeoutError:
            if not session_time.expired():
                raise
            return self._final("time")
        self._count_tokens(completion)
        parsed = self._renderer.parse(completion=completion.token_ids, prompt=prompt.ids, tools=request.tools)
        stopped_by = stop_of(parsed, request.stop)
        message = as_message(parsed, stopped_by)
        self._native.learn(message, parsed)
        call_id = self._tree.add(
            Sampled(
                request=request,
                history=history,
                place=prompt.place,
                prompt_delta=prompt.delta,
                completion=completion,
                reply=message,
                timing=Timing(started_at_s=started_at_s, generate_s=time.perf_counter() - began),
            )
        )
        answered = Answered(
            reply=as_reply(message, completion, prompt.ids.size, stopped_by),
            on_delivered=lambda: self._tree.mark_delivered(call_id),
            on_lost=lambda: self._tree.mark_lost(call_id),
        )
        self._answers.append(answered)
        return answered

    def _fail(self, error: EngineError) -> None:
        """Nothing that is sampled from now on is of use."""
        self.ending.fail(Failure(kind="engine", message=str(error)))
        self._cancel_flights()

    def _cancel_flights(self) -> list[asyncio.Task[Answered]]:
        tasks = [flight.task for flight in self._flights.values() if flight.task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        return tasks

    def _count_tokens(self, completion: Completion) -> None:
        self._budget.end_call(completion)
        self.ending.count_sampled()
        self._told_full = False
        if completion.finish_reason == "length" and self._budget.left_tokens < 1:
            self._cut_short = True

    def _final(self, limit: Limit) -> Answered:
        """The answer to everything that comes after the last call."""
        self._cut_short = True
        self.counters["not_sampled"] += 1
        self.counters[f"not_sampled_{limit}"] += 1
        self.ending.count_final_answer()
        return Answered(reply=limit_reply(limit), on_delivered=_nothing)

    def _over_context(self, prompt_tokens: int) -> Answered:
        """The final answer, once the agent was told of its context often enough.

        Raises:
            PromptTooLongError: until then.
        """
        self._told_full = True
        self.counters["over_context"] += 1
        if not self._budget.may_refuse_context():
            return self._final("context")
        raise PromptTooLongError(prompt_tokens=prompt_tokens, context_length=self._settings.context_length)


def _engine_failed() -> GatewayRequestError:
    return GatewayRequestError("the engine failed", status=503, code="engine_failed")


def _nothing() -> None:
    """No call holds this answer."""


async def take(session: GatewaySession, request: ChatRequest) -> ChatReply:
    """Ask in-process: the answer counts as delivered when this returns."""
    ticket = await session.admit(request)
    try:
        reply = await ticket.answer()
        ticket.delivered()
    finally:
        ticket.leave()
    return reply
