"""The calls of one session as a tree, and where in it a new request belongs."""

from __future__ import annotations

import msgspec
import numpy as np

from longrein.gateway import stitch
from longrein.gateway.dialect import ChatRequest
from longrein.types import I32, Call, Completion, Message, Timing, Tool, Trace


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of a request's messages."""

    meanings: tuple[bytes, ...]
    """One a message. An echo known by its tool-call ids has the meaning of what we had said."""
    exacts: tuple[bytes, ...]
    """One a message, reasoning included."""
    chains: tuple[bytes, ...]
    """One a message: the conversation up to and including it."""
    tools: bytes
    key: bytes
    """Two requests with the same key ask for the same thing."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request belongs: below ``parent_id``, or at a new root."""

    parent_id: int | None
    branch_reason: str
    new: tuple[Message, ...]
    """Messages after the parent's reply; all messages at a root."""
    new_exacts: tuple[bytes, ...]


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the engine has answered, about to be stored."""

    request: ChatRequest
    history: History
    place: Place
    prompt_delta: I32
    completion: Completion
    reply: Message
    timing: Timing


class _Node(msgspec.Struct, kw_only=True):
    call: Call
    new_exacts: tuple[bytes, ...]
    reply_meaning: bytes
    tools: bytes
    key: bytes


class CallTree:
    """Append-only. Prompts are kept as deltas to the parent's prompt + completion."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._nodes: list[_Node] = []
        self._ends: dict[bytes, list[int]] = {}
        self._by_call_ids: dict[tuple[str, ...], int] = {}

    def history(self, request: ChatRequest, max_tokens: int) -> History:
        """Digest a request. ``max_tokens`` is what it will really get."""
        meanings = tuple(self._meaning(message) for message in request.messages)
        exacts = tuple(map(stitch.with_reasoning, meanings, request.messages))
        chains: list[bytes] = []
        for meaning in meanings:
            chains.append(stitch.extend(chains[-1] if chains else b"", meaning))
        tools = stitch.tools_meaning(request.tools)
        limits = msgspec.json.encode([max_tokens, request.stop])
        key = stitch.extend(b"".join(exacts), tools + limits)
        return History(meanings=meanings, exacts=exacts, chains=tuple(chains), tools=tools, key=key)

    def place(self, request: ChatRequest, history: History) -> Place:
        """The longest known conversation that this request extends, with the same tools."""
        reason = "history_changed" if self._nodes else "first"
        for end in range(len(request.messages), 0, -1):
            for call_id in reversed(self._ends.get(history.chains[end - 1], ())):
                if not self._is_prefix(call_id, request, history, end):
                    continue
                if self._nodes[call_id].tools == history.tools:
                    return _place(call_id, "", request, history, end)
                reason = "tools_changed"
        if any(node.key == history.key and node.call.parent_id is None for node in self._nodes):
            reason = "repeated"
        return _place(None, reason, request, history, 0)

    def root(self, request: ChatRequest, history: History, branch_reason: str) -> Place:
        """The same request at a new root, where the parent's stream cannot be extended."""
        return _place(None, branch_reason, request, history, 0)

    def add(self, sampled: Sampled) -> int:
        """Store a call, not delivered yet; returns its id."""
        call_id = len(self._nodes)
        request, place = sampled.request, sampled.place
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
        node = _Node(
            call=call,
            new_exacts=place.new_exacts,
            reply_meaning=stitch.meaning(sampled.reply),
            tools=sampled.history.tools,
            key=sampled.history.key,
        )
        self._nodes.append(node)
        self._ends.setdefault(stitch.extend(sampled.history.chains[-1], node.reply_meaning), []).append(call_id)
        if ids := stitch.call_ids(sampled.reply):
            self._by_call_ids[ids] = call_id
        return call_id

    def undelivered(self, key: bytes) -> Call | None:
        """The latest call that answered this very request and did not reach the agent."""
        for node in reversed(self._nodes):
            if node.key == key:
                return None if node.call.delivered else node.call
        return None

    def mark_delivered(self, call_id: int) -> None:
        """The agent has the whole answer."""
        node = self._nodes[call_id]
        node.call = msgspec.structs.replace(node.call, delivered=True)

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
        return Trace(session_id=self._session_id, calls=with_roles(tuple(node.call for node in self._nodes)))

    def _meaning(self, message: Message) -> bytes:
        known = self._by_call_ids.get(stitch.call_ids(message))
        return stitch.meaning(message) if known is None else self._nodes[known].reply_meaning

    def _is_prefix(self, call_id: int, request: ChatRequest, history: History, end: int) -> bool:
        """Whether the first ``end`` messages are this call's conversation and its reply, by meaning."""
        at: int | None = call_id
        while at is not None:
            node = self._nodes[at]
            begin = end - 1 - len(node.new_exacts)
            if begin < 0 or history.exacts[begin : end - 1] != node.new_exacts:
                return False
            if not self._is_echo(request.messages[end - 1], history.meanings[end - 1], node):
                return False
            end, at = begin, node.call.parent_id
        return end == 0

    def _is_echo(self, message: Message, meaning: bytes, node: _Node) -> bool:
        """By our tool-call ids, where they came back; else by meaning. Reasoning may be missing, not different."""
        owner = self._by_call_ids.get(stitch.call_ids(message))
        if owner is not None:
            return owner == node.call.call_id
        return meaning == node.reply_meaning and stitch.reasoning(message) in ("", stitch.reasoning(node.call.reply))


def with_roles(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Calls with their roles: whatever is asked without tools, in a session that works with tools, is auxiliary.

    A branch that holds a tool result never is: the agent executed something.
    """
    offered: list[tuple[Tool, ...]] = []
    executed: set[int] = set()
    roots: list[int] = []
    for call in calls:
        root = call.call_id if call.parent_id is None else roots[call.parent_id]
        roots.append(root)
        offered.append(calls[root].tools)
        if any(message["role"] == "tool" for message in call.messages):
            executed.add(root)
    if not any(offered):
        return calls
    evidence = "no tools offered, while the session's other calls have tools"
    return tuple(
        call if tools or root in executed else msgspec.structs.replace(call, role="auxiliary", role_evidence=evidence)
        for call, tools, root in zip(calls, offered, roots, strict=True)
    )


def _place(parent_id: int | None, reason: str, request: ChatRequest, history: History, end: int) -> Place:
    return Place(
        parent_id=parent_id,
        branch_reason=reason,
        new=request.messages[end:],
        new_exacts=history.exacts[end:],
    )
