"""Why a request starts a branch of its own: what it has in common with the calls before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from longrein.gateway import stitch
from longrein.gateway.dialect import ChatRequest
from longrein.gateway.nodes import History, Node
from longrein.gateway.summaries import summary_of
from longrein.types import Message

ARGUMENT_CHARS = 8
"""A tool argument this long is recognised as another conversation's task."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Why a root is a root."""

    reason: str
    """See :attr:`longrein.types.Call.branch_reason`."""
    continues: int | None = None
    """The call whose answer this root goes on from, as from a summary."""
    stem: int | None = None
    """The call whose conversation this root takes up, with other tools or under another system prompt."""


def origin(request: ChatRequest, history: History, nodes: Sequence[Node], *, but_for_tools: int | None) -> Origin:
    """Say why ``request`` extends none of ``nodes``. ``but_for_tools``: what it would extend, with the same tools."""
    if not nodes:
        return Origin(reason="first")
    but_for_lead = _extended_but_for_the_lead(history, nodes) if but_for_tools is None else None
    stem = but_for_lead if but_for_tools is None else but_for_tools
    summary = summary_of(request, history, nodes)
    asked_before = _asked_before(history, nodes)
    if asked_before is not None and (summary is None or summary < asked_before):
        return Origin(reason="repeated", stem=stem)
    if _opens_a_subagent(request, nodes) or _is_task_of_a_call(history, nodes):
        return Origin(reason="subagent", stem=stem)
    if summary is not None:
        return Origin(reason="compaction", continues=summary, stem=stem)
    if stem is not None:
        return Origin(reason="system_changed" if but_for_tools is None else "tools_changed", stem=stem)
    return Origin(reason="history_changed" if _shares(request, history, nodes) else "new_conversation")


def after_lead(start: bytes, messages: Sequence[Message], digests: Sequence[bytes]) -> Iterator[bytes]:
    """Running digests of a conversation without the system messages that open it (where ``start`` is empty)."""
    chain = start
    for message, digest in zip(messages, digests, strict=True):
        if chain or message["role"] != "system":
            chain = stitch.extend(chain, digest)
        yield chain


def _asked_before(history: History, nodes: Sequence[Node]) -> int | None:
    """The latest root that answered this very request."""
    roots = (node for node in reversed(nodes) if node.call.parent_id is None)
    return next((node.call.call_id for node in roots if node.asks == history.asks), None)


def _opens_a_subagent(request: ChatRequest, nodes: Sequence[Node]) -> bool:
    caller = request.caller
    return caller.role == "subagent" and all(node.caller.thread != caller.thread for node in nodes)


def _is_task_of_a_call(history: History, nodes: Sequence[Node]) -> bool:
    """Whether the conversation is new and its user's words are a text that an earlier call gave to a tool."""
    if _holds_replies(history, nodes) or any(message["role"] == "tool" for message in history.messages):
        return False
    asked = _text(history.messages[-1]).strip()
    return any(
        asked == text or asked.endswith("\n" + text)
        for node in nodes
        for text in _argument_texts(node.call.reply)
        if len(text) >= ARGUMENT_CHARS
    )


def _argument_texts(reply: Message) -> Iterator[str]:
    calls: list[dict[str, Any]] = reply.get("tool_calls") or []
    for call in calls:
        yield from _texts(stitch.parsed(call["function"]["arguments"]))


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value.strip()
        case dict():
            for item in cast("dict[str, Any]", value).values():
                yield from _texts(item)
        case list():
            for item in cast("list[Any]", value):
                yield from _texts(item)
        case _:
            return


def _extended_but_for_the_lead(history: History, nodes: Sequence[Node]) -> int | None:
    chains, bare = set(history.chains), set(after_lead(b"", history.messages, history.meanings))
    latest_first = (node for node in reversed(nodes) if node.after_lead in bare and node.after not in chains)
    return next((node.call.call_id for node in latest_first), None)


def _shares(request: ChatRequest, history: History, nodes: Sequence[Node]) -> bool:
    """Whether this is an earlier conversation by its opening or by a reply of ours."""
    opening = history.opening
    return _holds_replies(history, nodes) or any(
        node.opening == opening
        for node in nodes
        if node.call.parent_id is None and node.caller.thread == request.caller.thread
    )


def _holds_replies(history: History, nodes: Sequence[Node]) -> bool:
    replies = {node.reply_meaning for node in nodes}
    return any(
        message["role"] == "assistant" and meaning in replies
        for message, meaning in zip(history.messages, history.meanings, strict=True)
    )


def _text(message: Message) -> str:
    return message.get("content") or ""
