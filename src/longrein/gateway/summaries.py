"""Compacted conversations: the call that gave a summary is known by the conversation that goes on from it.

A pipeline or a judge quotes an agent's answers as well. So a quote alone says nothing: the answer must have been asked
for in words, and the new conversation must have the thread, the opening, or the tools and the system prompt of the
one that was summarised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from longrein.gateway import stitch
from longrein.gateway.dialect import ChatRequest
from longrein.gateway.nodes import History, Node
from longrein.types import Message

QUOTE_CHARS = 32
"""A reply this long is recognised within another text; a shorter one might stand there by chance."""
_SUMMARY_TAGS = re.compile(r"<summary>(.*?)</summary>", re.DOTALL)
"""Claude Code asks for a summary in these, and goes on from what they hold."""


def summary_of(request: ChatRequest, history: History, nodes: Sequence[Node]) -> int | None:
    """The latest call whose answer this request goes on from, where no echo of it would stand."""
    first_with_tools = next((node.call.call_id for node in nodes if node.tools != stitch.NO_TOOLS), len(nodes))
    for node in reversed(nodes):
        said = "" if node.call.reply.get("tool_calls") else _summary_text(node.call.reply)
        if not said:
            continue
        apart = node.tools == stitch.NO_TOOLS and bool(request.tools) and node.call.call_id > first_with_tools
        over_history = node.holds_replies or node.call.parent_id is not None
        in_place = apart and _stands_in_place(said, history, node)
        quoted = (apart or over_history) and len(said) >= QUOTE_CHARS and _is_quoted(said, history)
        if (in_place or quoted) and _was_asked_for(node) and _takes_up(request, history, node, nodes):
            return node.call.call_id
    return None


def summarised(node: Node, nodes: Sequence[Node]) -> Node:
    """The call whose conversation ``node`` would be a summary of: the one that it takes up, or the latest at work."""
    before = node.call.parent_id if node.call.parent_id is not None else node.stem
    if before is not None:
        return nodes[before]
    if node.tools != stitch.NO_TOOLS:
        return node
    earlier = reversed(nodes[: node.call.call_id])
    at_work = (one for one in earlier if one.tools != stitch.NO_TOOLS and one.caller.thread == node.caller.thread)
    return next(at_work, node)


def _was_asked_for(node: Node) -> bool:
    """In words; what follows a tool's result is the agent's own."""
    return bool(node.call.messages) and node.call.messages[-1]["role"] in ("user", "system")


def _takes_up(request: ChatRequest, history: History, node: Node, nodes: Sequence[Node]) -> bool:
    """Whether the request has something in common with the conversation that ``node`` would be a summary of."""
    if request.caller.thread and request.caller.thread == node.caller.thread:
        return True
    earlier = summarised(node, nodes)
    same_tools = bool(request.tools) and history.tools == earlier.tools
    return history.opening == earlier.opening or (same_tools and history.lead == earlier.lead)


def _summary_text(reply: Message) -> str:
    text: str = reply.get("content") or ""
    tagged = _SUMMARY_TAGS.search(text)
    return (tagged[1] if tagged else text).strip()


def _stands_in_place(said: str, history: History, node: Node) -> bool:
    """As an assistant's turn, but after another question than the one it answered."""
    return any(
        message["role"] == "assistant"
        and (message.get("content") or "").strip() == said
        and (at == 0 or history.meanings[at - 1] != node.asked_last)
        for at, message in enumerate(history.messages)
    )


def _is_quoted(said: str, history: History) -> bool:
    spoken = (message for message in history.messages if message["role"] in ("user", "system"))
    return any(said in (message.get("content") or "") for message in spoken)
