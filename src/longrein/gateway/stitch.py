"""Compare conversations by meaning, so that an agent's echo of our own answer is recognised.

Agents re-serialise arguments, turn null into "", trim or drop reasoning, and wrap text in parts (the dialect has
undone that last one already). None of this changes what was said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import Any, cast

import msgspec

from longrein.types import Message, Tool

_ENCODER = msgspec.json.Encoder(order="sorted")


def meaning(message: Message, answers: int = 0) -> bytes:
    """A digest of what a message says. Reasoning does not count, nor how arguments are written.

    Tool-call ids do not count either, as agents may give calls ids of their own: which call of its turn a tool message
    ``answers`` does (see :func:`answered`).
    """
    content: str = message.get("content") or ""
    said: dict[str, Any] = {"role": message["role"], "name": message.get("name") or "", "answers": answers}
    said["content"] = content.strip() if message["role"] == "assistant" else content
    functions = [call["function"] for call in _calls(message)]
    said["calls"] = [(function["name"], parsed(function["arguments"])) for function in functions]
    return _digest(_ENCODER.encode(said))


def places(ids: tuple[str, ...]) -> dict[str, int]:
    """The places of a turn's calls by their ``ids``; an id that is there twice says nothing."""
    counts = Counter(ids)
    return {call_id: place for place, call_id in enumerate(ids) if counts[call_id] == 1}


def answered(message: Message, calls: dict[str, int], place: int) -> int:
    """Which of a turn's ``calls`` (see :func:`places`) a tool message answers; by its ``place`` where no id says."""
    return calls.get(message.get("tool_call_id", ""), place)


def extend(chain: bytes, message_meaning: bytes) -> bytes:
    """The digest of a conversation with one more message."""
    return _digest(chain + message_meaning)


def with_reasoning(message_meaning: bytes, message: Message) -> bytes:
    """:func:`meaning` and reasoning, where there is any: for messages that are not echoes of our own."""
    thought = reasoning(message)
    return _digest(message_meaning + thought.encode()) if thought else message_meaning


def tools_meaning(tools: tuple[Tool, ...]) -> bytes:
    """A digest of a list of tools."""
    return _digest(_ENCODER.encode(tools))


def call_ids(message: Message) -> tuple[str, ...]:
    """Ids of a message's tool calls, in order."""
    return tuple(call["id"] for call in _calls(message))


def opening(messages: Sequence[Message], digests: Sequence[bytes]) -> bytes:
    """The digest of the first message that is not the system's; empty without one."""
    return next((digest for m, digest in zip(messages, digests, strict=True) if m["role"] != "system"), b"")


def lead(messages: Sequence[Message], digests: Sequence[bytes]) -> bytes:
    """The digest of the system messages that open a conversation."""
    opening_system = takewhile(lambda pair: pair[0]["role"] == "system", zip(messages, digests, strict=True))
    return _digest(b"".join(digest for _, digest in opening_system))


def reasoning(message: Message) -> str:
    """A message's reasoning, all white space alike."""
    return " ".join((message.get("reasoning_content") or "").split())


def thinks_alike(echo: Message, reply: Message) -> bool:
    """Whether an echo's reasoning is the reply's. It may be missing, or there more than once, but not another."""
    echoed, ours = reasoning(echo), reasoning(reply)
    times = (len(echoed) + 1) // (len(ours) + 1)
    return echoed == " ".join([ours] * times)


def says_alike(echo: Message, reply: Message) -> bool:
    """Whether the echo's text is the reply's, trimmed, dropped or in parts. For turns that share their calls' ids."""
    return in_one_piece(echo) in ("", in_one_piece(reply))


def in_one_piece(message: Message) -> str:
    """A message's text without line breaks: agents echo texts in parts, which were joined by one."""
    text: str = message.get("content") or ""
    return text.replace("\n", "").strip()


def is_unfinished(echo: Message, reply: Message) -> bool:
    """Whether an echo is the beginning of the reply and no more: the agent did not get the rest."""
    ids, ours = call_ids(echo), call_ids(reply)
    text: str = (echo.get("content") or "").strip()
    whole: str = (reply.get("content") or "").strip()
    thought_begins = thinks_alike(echo, reply) or reasoning(reply).startswith(reasoning(echo))
    begins = ids == ours[: len(ids)] and whole.startswith(text) and thought_begins
    return begins and (len(ids) < len(ours) or len(text) < len(whole))


def _calls(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def parsed(arguments: str) -> Any:
    """Arguments as JSON; as they are where they are none."""
    try:
        return _plain(msgspec.json.decode(arguments))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments


def _plain(value: Any) -> Any:
    """JavaScript writes 1.0 back as 1."""
    match value:
        case float():
            return int(value) if value.is_integer() else value
        case list():
            return [_plain(item) for item in cast("list[Any]", value)]
        case dict():
            return {key: _plain(item) for key, item in cast("dict[str, Any]", value).items()}
        case _:
            return value


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


NO_TOOLS = tools_meaning(())
