"""Ids of tool calls, between what agents know them by and what the model does.

Agents get ids of ours, one of its own for each call; some put theirs in the place of these. A model that samples ids
itself (Kimi K2) must find the ones that it sampled.
"""

from __future__ import annotations

import re

from longrein.engines.parsed import ParsedReply
from longrein.gateway import stitch
from longrein.types import Message

HARMLESS = re.compile(r"[A-Za-z0-9_.:-]{1,128}", re.ASCII)
"""Sampled ids that a template may write again: none of its marks can be spelled so."""


class NativeIds:
    """Our id of a call -> the one that the model sampled."""

    def __init__(self) -> None:
        self._native: dict[str, str] = {}

    def learn(self, reply: Message, parsed: ParsedReply) -> None:
        """Remember what was sampled. A turn that names two calls alike keeps our ids, to be told apart."""
        native = [call.native_id for call in parsed.tool_calls]
        if len(set(native)) == len(native) and all(map(HARMLESS.fullmatch, native)):
            self._native |= zip(stitch.call_ids(reply), native, strict=True)

    def restore(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Messages as the model is to read them."""
        return tuple(map(self._restored, messages)) if self._native else messages

    def _restored(self, message: Message) -> Message:
        if message.get("tool_calls"):
            calls = [{**call, "id": self._native.get(call["id"], call["id"])} for call in message["tool_calls"]]
            return {**message, "tool_calls": calls}
        call_id: str = message.get("tool_call_id", "")
        return {**message, "tool_call_id": self._native[call_id]} if call_id in self._native else message


def readdressed(new: tuple[Message, ...], echo: Message, reply: Message) -> tuple[Message, ...]:
    """Results for an agent's ``echo`` of ``reply``, with the ids that the reply's own calls have."""
    theirs, ours = stitch.call_ids(echo), stitch.call_ids(reply)
    if theirs == ours or len(set(theirs)) < len(theirs):
        return new
    ids = dict(zip(theirs, ours, strict=False))
    return tuple(
        {**message, "tool_call_id": ids[message["tool_call_id"]]} if message.get("tool_call_id") in ids else message
        for message in new
    )


def answers_before(reply: Message, new: tuple[Message, ...], before: tuple[Message, ...]) -> bool:
    """Whether a result among the ``new`` messages belongs to a turn before the ``reply``."""
    results = {message.get("tool_call_id", "") for message in new if message["role"] == "tool"}
    late = results.difference(stitch.call_ids(reply))
    return bool(late) and any(not late.isdisjoint(stitch.call_ids(message)) for message in before)
