"""Who asks, read from the headers that agents send of their own accord.

Headers are the agent's word, not proof: they name a conversation and what kind of request this is. What is malformed
says nothing, and nothing here fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from longrein.gateway.dialect import Caller, CallerRole

MAX_NAME_CHARS = 200
"""Longer names are cut: they are kept with every call."""
MAX_METADATA_CHARS = 16_384
"""Codex's metadata has about 1,000; more is not read."""

Headers = Mapping[str, str]
"""Names in lower case."""

# What Codex calls its helpers. All others of its sub-agents do work that the agent asked for.
_CODEX_HELPERS: dict[str, CallerRole] = {"compact": "compaction", "memory_consolidation": "auxiliary"}


class _TurnMetadata(msgspec.Struct, frozen=True):
    request_kind: object = None


def caller_of(headers: Headers) -> Caller:
    """What the headers of a request say of its sender; an empty :class:`Caller` where they say nothing."""
    for name, read in _READERS.items():
        if headers.get(name):
            return read(headers)
    return Caller()


def _codex(headers: Headers) -> Caller:
    thread = _name(headers, "thread-id") or _name(headers, "session-id")
    parent = _name(headers, "x-codex-parent-thread-id")
    kind = _request_kind(headers.get("x-codex-turn-metadata", ""))
    subagent = _name(headers, "x-openai-subagent")
    role: CallerRole = ""
    evidence = ""
    if helper := _CODEX_HELPERS.get(subagent):
        role, evidence = helper, f"x-openai-subagent: {subagent}"
    elif kind == "compaction":
        role, evidence = "compaction", "x-codex-turn-metadata: request_kind compaction"
    elif subagent:
        role, evidence = "subagent", f"x-openai-subagent: {subagent}"
    elif parent:
        role, evidence = "subagent", "x-codex-parent-thread-id"
    elif kind == "turn":
        role, evidence = "agent", "x-codex-turn-metadata: request_kind turn"
    return Caller(thread=thread, parent_thread=parent, role=role, evidence=evidence)


def _claude(headers: Headers) -> Caller:
    session = _name(headers, "x-claude-code-session-id")
    agent = _name(headers, "x-claude-code-agent-id")
    if not agent:
        return Caller(thread=session)
    return Caller(
        thread=f"{session}/{agent}", parent_thread=session, role="subagent", evidence="x-claude-code-agent-id"
    )


def _opencode(headers: Headers) -> Caller:
    thread, parent = _name(headers, "x-session-id"), _name(headers, "x-parent-session-id")
    if not parent:
        return Caller(thread=thread)
    return Caller(thread=thread, parent_thread=parent, role="subagent", evidence="x-parent-session-id")


def _pi(headers: Headers) -> Caller:
    return Caller(thread=_name(headers, "session_id"))


_READERS: dict[str, Callable[[Headers], Caller]] = {
    "x-codex-turn-metadata": _codex,
    "x-openai-subagent": _codex,
    "thread-id": _codex,
    "x-claude-code-session-id": _claude,
    "x-session-id": _opencode,
    "session_id": _pi,
}


def _name(headers: Headers, name: str) -> str:
    return headers.get(name, "")[:MAX_NAME_CHARS]


def _request_kind(metadata: str) -> str:
    if len(metadata) > MAX_METADATA_CHARS:
        return ""
    try:
        kind = msgspec.json.decode(metadata, type=_TurnMetadata).request_kind
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    return kind if isinstance(kind, str) else ""
