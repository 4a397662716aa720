"""One session at the gateway: lets requests in, asks the engine, stores what was sampled."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import msgspec

from longrein.engines.base import Engine, EngineRequest
from longrein.engines.render import ChatRenderer
from longrein.errors import ContextLengthError, EngineError, EngineRequestError, GatewayRequestError, boundary
from longrein.gateway.bugs import BugTrap
from longrein.gateway.dialect import ChatReply, ChatRequest
from longrein.gateway.prompt import Prompt, build_prompt
from longrein.gateway.reply import as_message, as_reply, limit_reply
from longrein.gateway.settings import GatewaySettings
from longrein.gateway.ticket import Answered, Flight, LiveTicket, ReplayTicket, Ticket, UnsampledTicket
from longrein.gateway.tree import CallTree, History, Sampled
from longrein.types import Completion, Failure, Sampling, Timing, Trace

ENGINE_TRIES = 3
CLOSE_TIMEOUT_S = 0.5


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a session."""

    trace: Trace
    truncated: bool
    """The context or the number of calls ran out."""
    failure: Failure | None
    """The engine failed: the rollout is unscorable."""
    counters: dict[str, float]


class GatewaySession:
    """All calls of one session. Everything happens in the event loop's thread."""

    def __init__(self, session_id: str, engine: Engine, renderer: ChatRenderer, settings: GatewaySettings) -> None:
        self.session_id = session_id
        self.counters: Counter[str] = Counter()
        self._engine = engine
        self._renderer = renderer
        self._settings = settings
        self._tree = CallTree(session_id)
        self._flights: dict[bytes, Flight] = {}
        self._truncated = False
        self._closed = False
        self._failure: Failure | None = None
        self.bugs = BugTrap()

    def count_refusal(self, error: GatewayRequestError) -> None:
        """A request of this session was refused. It is counted and changes nothing else."""
        self.counters["refused"] += 1
        self.counters[f"refused_{error.code}"] += 1

    def trace(self) -> Trace:
        """The trace so far."""
        return self._tree.snapshot()

    def admit(self, request: ChatRequest) -> Ticket:
        """Let a request in.

        The same request while its answer is under way shares that answer; while a finished answer never reached
        the agent, gets it again; otherwise it is sampled, as a sibling if it was answered before.

        Raises:
            GatewayRequestError: no room in the context, or a conversation that the template refuses.
        """
        if self._closed:
            raise GatewayRequestError("this session is closed", status=401, code="invalid_api_key")
        wanted = min(request.max_tokens or self._settings.max_tokens, self._settings.max_tokens)
        history = self._history(request, wanted)
        if flight := self._flights.get(history.key):
            self.counters["coalesced"] += 1
            return LiveTicket(flight, self._tree.mark_delivered)
        if call := self._tree.undelivered(history.key):
            self.counters["replayed"] += 1
            reply = as_reply(call.reply, call.completion, self._tree.prompt_ids(call.call_id).size)
            return ReplayTicket(Answered(reply=reply, call_id=call.call_id), self._tree.mark_delivered)
        if self.counters["started"] >= self._settings.max_calls:
            self._truncated = True
            self.counters["not_sampled"] += 1
            return UnsampledTicket(limit_reply())
        return LiveTicket(self._start(request, history, wanted), self._tree.mark_delivered)

    async def close(self) -> SessionRecord:
        """Cancel what is in flight, let the engine forget the session, and hand over the record."""
        self._closed = True
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
        with boundary():
            await self._engine.forget(self.session_id)
        self.bugs.check()
        return SessionRecord(
            trace=self.trace(),
            truncated=self._truncated,
            failure=self._failure,
            counters={name: float(count) for name, count in self.counters.items()},
        )

    def _history(self, request: ChatRequest, wanted: int) -> History:
        try:
            return self._tree.history(request, wanted)
        except RecursionError as error:
            raise GatewayRequestError("the request is nested too deeply", status=400, code="invalid_request") from error

    def _start(self, request: ChatRequest, history: History, wanted: int) -> Flight:
        prompt = build_prompt(self._renderer, self._tree, request, history)
        room = self._settings.context_length - prompt.ids.size
        if room < 1:
            raise self._over_context(prompt.ids.size)
        self.counters["started"] += 1
        self.counters[f"branch_{prompt.place.branch_reason}" if prompt.place.branch_reason else "extended"] += 1
        engine_request = EngineRequest(
            request_id=f"{self.session_id}:{self.counters['started']}",
            conversation_id=self.session_id,
            prompt_ids=prompt.ids,
            sampling=Sampling(
                max_tokens=min(wanted, room),
                temperature=self._settings.temperature,
                stop=request.stop,
                stop_token_ids=self._renderer.stop_token_ids,
            ),
        )
        task = asyncio.create_task(self._answer(request, history, prompt, engine_request))
        flight = Flight(task, on_abandoned=lambda: self._abandon(history.key))
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
        completion = await self._generate(engine_request)
        parsed = self._renderer.parse(completion=completion.token_ids, prompt=prompt.ids, tools=request.tools)
        message = as_message(parsed, request.stop)
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
        return Answered(reply=as_reply(message, completion, prompt.ids.size), call_id=call_id)

    async def _generate(self, request: EngineRequest) -> Completion:
        for attempt in range(ENGINE_TRIES):
            try:
                return await self._engine.generate(request)
            except ContextLengthError as error:
                raise self._over_context(request.prompt_ids.size) from error
            except EngineError as error:
                # A request that the engine refuses is refused again.
                if isinstance(error, EngineRequestError) or attempt == ENGINE_TRIES - 1:
                    self._failure = Failure(kind="engine", message=str(error))
                    raise GatewayRequestError("the engine failed", status=503, code="engine_failed") from error
            self.counters["engine_retries"] += 1
            await asyncio.sleep(self._settings.retry_delay_s * 4**attempt)
        raise AssertionError("unreachable: the last try returns or raises")

    def _over_context(self, prompt_tokens: int) -> GatewayRequestError:
        self._truncated = True
        self.counters["over_context"] += 1
        return GatewayRequestError(
            f"This model's maximum context length is {self._settings.context_length} tokens. However, your messages "
            f"resulted in {prompt_tokens} tokens. Please reduce the length of the messages.",
            status=400,
            code="context_length_exceeded",
        )


async def take(session: GatewaySession, request: ChatRequest) -> ChatReply:
    """Ask in-process: the answer counts as delivered when this returns."""
    ticket = session.admit(request)
    try:
        reply = await ticket.answer()
        ticket.delivered()
    finally:
        ticket.leave()
    return reply
