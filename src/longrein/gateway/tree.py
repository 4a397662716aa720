"""The calls of one session as a tree, and where in it a new request belongs."""

from __future__ import annotations

from itertools import accumulate, islice, pairwise

import msgspec
import numpy as np

from longrein.gateway import stitch
from longrein.gateway.branches import Origin, after_lead, origin
from longrein.gateway.dialect import ChatRequest
from longrein.gateway.nodes import History, Node
from longrein.gateway.recall import Digested, Recall
from longrein.gateway.roles import with_roles
from longrein.types import I32, Call, Completion, Message, Timing, Trace


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request belongs: below ``parent_id``, or at a new root."""

    parent_id: int | None
    branch_reason: str
    new: tuple[Message, ...]
    """Messages after the parent's reply; all messages at a root."""
    new_exacts: tuple[bytes, ...]
    continues: int | None
    stem: int | None
    """For both see :class:`~longrein.gateway.nodes.Node`."""


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the engine has answered, about to be stored."""

    request: ChatRequest
    history: History
    place: Place
    prompt_delta: I32
    completion: Completion
    reply: Message
    timing: Timing


class CallTree:
    """Append-only. Prompts are kept as deltas to the parent's prompt + completion."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._nodes: list[Node] = []
        self._ends: dict[bytes, list[int]] = {}
        """Conversation with its reply -> calls."""
        self._asked: dict[bytes, list[int]] = {}
        """Conversation before its reply -> calls."""
        self._latest: dict[bytes, int] = {}
        """Key of a request -> the latest call that answered it."""
        self._by_call_ids: dict[tuple[str, ...], int] = {}
        self._by_text: dict[str, int] = {}
        """Text in one piece -> the latest call that said this and called no tool."""
        self._said: dict[tuple[bytes, bytes], int] = {}
        """Meanings of what was asked last and of the reply -> the latest call."""
        self._replies: set[bytes] = set()
        self._recall = Recall()

    def history(self, request: ChatRequest, max_tokens: int) -> History:
        """Digest a request. ``max_tokens`` is what it will really get."""
        digested = self._digested(request.messages)
        tools = self._recall.tools(request.tools)
        if self._asks_again(digested, tools):
            digested = digested.first(len(digested.messages) - 1)
        asks = stitch.extend(b"".join(digested.exacts), tools + request.caller.thread.encode())
        return History(
            messages=digested.messages,
            meanings=digested.meanings,
            exacts=digested.exacts,
            chains=digested.chains,
            tools=tools,
            asks=asks,
            key=stitch.extend(asks, msgspec.json.encode([max_tokens, request.stop, request.asked])),
        )

    def place(self, request: ChatRequest, history: History) -> Place:
        """Below the call whose conversation and reply are the beginning of this request, with the same tools."""
        end = max((at for at, m in enumerate(history.messages) if m["role"] == "assistant"), default=-1) + 1
        but_for_tools: int | None = None
        # What comes after the last assistant turn is new; a turn that we never sampled makes the rest another history.
        for call_id in self._candidates(request, history.chains[end - 1]) if end else ():
            if self._is_prefix(call_id, history, end):
                if self._nodes[call_id].tools == history.tools:
                    return _place(call_id, Origin(reason=""), history, end)
                but_for_tools = call_id if but_for_tools is None else but_for_tools
        return _place(None, origin(request, history, self._nodes, but_for_tools=but_for_tools), history, 0)

    def root(self, history: History, branch_reason: str) -> Place:
        """The same request at a new root, where the parent's stream cannot be extended."""
        return _place(None, Origin(reason=branch_reason), history, 0)

    def add(self, sampled: Sampled) -> int:
        """Store a call, not delivered yet; returns its id."""
        call_id = len(self._nodes)
        request, history, place = sampled.request, sampled.history, sampled.place
        call = Call(
            call_id=call_id,
            parent_id=place.parent_id,
            branch_reason=place.branch_reason,
            prompt_delta=sampled.prompt_delta,
            completion=sampled.completion,
            delivered=False,
            messages=place.new,
            tools=request.tools if place.parent_id is None else (),
            reply=sampled.reply,
            dialect=request.dialect,
            asked=request.asked,
            timing=sampled.timing,
        )
        reply_meaning = stitch.meaning(sampled.reply)
        root = history if place.parent_id is None else self._nodes[place.parent_id]
        node = Node(
            call=call,
            caller=request.caller,
            new_exacts=place.new_exacts,
            asked_last=history.meanings[-1],
            reply_meaning=reply_meaning,
            tools=history.tools,
            asks=history.asks,
            holds_replies=self._holds_replies(place, history),
            continues=place.continues,
            stem=place.stem,
            opening=root.opening,
            lead=root.lead,
            after=stitch.extend(history.chains[-1], reply_meaning),
            after_lead=stitch.extend(self._asked_without_lead(place, history), reply_meaning),
        )
        self._nodes.append(node)
        self._latest[history.key] = call_id
        self._replies.add(reply_meaning)
        self._asked.setdefault(history.chains[-1], []).append(call_id)
        self._ends.setdefault(node.after, []).append(call_id)
        if ids := stitch.call_ids(sampled.reply):
            self._by_call_ids[ids] = call_id
        else:
            self._by_text[stitch.in_one_piece(sampled.reply)] = call_id
        self._mark_echoed(place, history)
        self._said[node.asked_last, reply_meaning] = call_id
        return call_id

    def undelivered(self, key: bytes) -> Call | None:
        """The latest call that answered this very request, if it did not reach the agent."""
        latest = self._latest.get(key)
        if latest is None or self._nodes[latest].call.delivered:
            return None
        return self._nodes[latest].call

    def mark_delivered(self, call_id: int) -> None:
        """The agent has the whole answer."""
        node = self._nodes[call_id]
        node.readers += 1
        if not node.call.delivered:
            node.call = msgspec.structs.replace(node.call, delivered=True)

    def mark_lost(self, call_id: int) -> None:
        """One client that was thought to have the whole answer has not. Others still may."""
        node = self._nodes[call_id]
        node.readers -= 1
        if node.readers == 0:
            node.call = msgspec.structs.replace(node.call, delivered=False)

    def call(self, call_id: int) -> Call:
        """A stored call."""
        return self._nodes[call_id].call

    def prompt_ids(self, call_id: int) -> I32:
        """The exact prompt of a stored call, shape ``[n]``."""
        parts: list[I32] = []
        node = self._nodes[call_id].call
        parts.append(node.prompt_delta)
        while node.parent_id is not None:
            node = self._nodes[node.parent_id].call
            parts += [node.completion.token_ids, node.prompt_delta]
        return np.concatenate(parts[::-1])

    def snapshot(self) -> Trace:
        """The trace so far."""
        return Trace(session_id=self._session_id, calls=with_roles(self._nodes))

    def _digested(self, messages: tuple[Message, ...]) -> Digested:
        known = self._recall.beginning(messages)
        begin = len(known.messages)
        meanings = self._meanings(messages, begin)
        chains = accumulate(meanings, stitch.extend, initial=known.chains[-1] if begin else b"")
        digested = Digested(
            messages=(*known.messages, *messages[begin:]),
            meanings=(*known.meanings, *meanings),
            exacts=(*known.exacts, *map(stitch.with_reasoning, meanings, messages[begin:])),
            chains=(*known.chains, *islice(chains, 1, None)),
        )
        self._recall.keep(digested)
        return digested

    def _meanings(self, messages: tuple[Message, ...], begin: int) -> list[bytes]:
        """Of the messages from ``begin`` on; those before say whose results come first."""
        turn = next((at for at in range(begin - 1, -1, -1) if messages[at]["role"] == "assistant"), -1)
        calls = stitch.places(stitch.call_ids(messages[turn])) if turn >= 0 else {}
        results = sum(message["role"] == "tool" for message in messages[turn + 1 : begin])
        meanings: list[bytes] = []
        for message in messages[begin:]:
            if message["role"] == "assistant":
                ids = stitch.call_ids(message)
                calls, results = stitch.places(ids), 0
                meanings.append(self._turn_meaning(message, ids))
            elif message["role"] == "tool":
                meanings.append(stitch.meaning(message, stitch.answered(message, calls, results)))
                results += 1
            else:
                meanings.append(stitch.meaning(message))
        return meanings

    def _turn_meaning(self, message: Message, ids: tuple[str, ...]) -> bytes:
        """Whose ids are ours is our turn, whatever became of its arguments; not so if it says something else."""
        meaning = stitch.meaning(message)
        if not ids and meaning in self._replies:
            return meaning
        known = self._by_call_ids.get(ids) if ids else self._by_text.get(stitch.in_one_piece(message))
        if known is None or not stitch.says_alike(message, self._nodes[known].call.reply):
            return meaning
        return self._nodes[known].reply_meaning

    def _asks_again(self, digested: Digested, tools: bytes) -> bool:
        """Whether the request ends with an answer that this very conversation once got, and wants it again."""
        if len(digested.messages) < 2 or digested.messages[-1]["role"] != "assistant":
            return False
        earlier = (self._nodes[call_id] for call_id in self._asked.get(digested.chains[-2], ()))
        return any(node.tools == tools and self._is_wanted_again(digested, node) for node in earlier)

    def _is_wanted_again(self, digested: Digested, node: Node) -> bool:
        """The agent has not got the end of the answer; or it has all but does nothing with the calls in it."""
        last, reply = digested.messages[-1], node.call.reply
        if stitch.is_unfinished(last, reply):
            return True
        is_open = bool(stitch.call_ids(reply)) or not node.call.delivered
        return is_open and self._is_echo(last, digested.meanings[-1], node)

    def _mark_echoed(self, place: Place, history: History) -> None:
        """Whose answer comes back was delivered, even if its connection broke at the very end."""
        if place.parent_id is not None:
            echoed = {place.parent_id}
        else:
            found = (self._said.get(pair) for pair in pairwise(history.meanings))
            echoed = {call_id for call_id in found if call_id is not None}
        for call_id in echoed:
            self._nodes[call_id].echoed = True
            self.mark_delivered(call_id)

    def _candidates(self, request: ChatRequest, chain: bytes) -> list[int]:
        """Calls that end so, the youngest first, those of the same thread before others."""
        thread = request.caller.thread
        youngest_first = reversed(self._ends.get(chain, ()))
        return sorted(youngest_first, key=lambda call_id: self._nodes[call_id].caller.thread != thread)

    def _is_prefix(self, call_id: int, history: History, end: int) -> bool:
        """Whether the first ``end`` messages are this call's conversation and its reply, by meaning."""
        at: int | None = call_id
        while at is not None:
            node = self._nodes[at]
            begin = end - 1 - len(node.new_exacts)
            if begin < 0 or history.exacts[begin : end - 1] != node.new_exacts:
                return False
            if not self._is_echo(history.messages[end - 1], history.meanings[end - 1], node):
                return False
            end, at = begin, node.call.parent_id
        return end == 0

    def _is_echo(self, message: Message, meaning: bytes, node: Node) -> bool:
        """By our tool-call ids, where they came back; else by meaning. Reasoning may be missing, not different."""
        owner = self._by_call_ids.get(stitch.call_ids(message), node.call.call_id)
        alike = owner == node.call.call_id and meaning == node.reply_meaning
        return alike and stitch.thinks_alike(message, node.call.reply)

    def _holds_replies(self, place: Place, history: History) -> bool:
        if place.parent_id is None:
            return not self._replies.isdisjoint(history.meanings)
        parent = self._nodes[place.parent_id]
        return parent.holds_replies or parent.tools != stitch.NO_TOOLS

    def _asked_without_lead(self, place: Place, history: History) -> bytes:
        before = len(history.messages) - len(place.new)
        start = b"" if place.parent_id is None else self._nodes[place.parent_id].after_lead
        chains = list(after_lead(start, place.new, history.meanings[before:]))
        return chains[-1] if chains else start


def _place(parent_id: int | None, started: Origin, history: History, end: int) -> Place:
    return Place(
        parent_id=parent_id,
        branch_reason=started.reason,
        continues=started.continues,
        stem=started.stem,
        new=history.messages[end:],
        new_exacts=history.exacts[end:],
    )
