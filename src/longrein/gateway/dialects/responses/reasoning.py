"""Reasoning items: thoughts on their way to the agent and back."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from longrein.gateway.dialects.responses.calls import OutputItem, new_id

OURS = "longrein."
"""Begins every ``encrypted_content`` that we wrote; nothing in it is secret, it is opaque to the agent only."""


class TextPart(msgspec.Struct, frozen=True):
    """A part of a summary or of the thought itself."""

    text: str


class ReasoningItem(msgspec.Struct, frozen=True):
    """A reasoning item as it comes in."""

    summary: list[TextPart] | None = None
    content: list[TextPart] | None = None
    encrypted_content: str | None = None


def reasoning_of(item: ReasoningItem) -> str:
    """The thought: as we sealed it, else as it was shown."""
    sealed = _unseal(item.encrypted_content or "")
    if sealed:
        return sealed
    return "\n".join(part.text for part in item.content or item.summary or [])


def write_reasoning(reasoning: str, status: str, *, sealed: bool) -> OutputItem:
    """A thought as an item, shown as its own summary."""
    item_id = new_id("rs")
    part = {"type": "summary_text", "text": reasoning}
    whole: dict[str, Any] = {"type": "reasoning", "id": item_id, "summary": [part], "status": status}
    if sealed:
        whole["encrypted_content"] = OURS + base64.b64encode(reasoning.encode()).decode()
    where = {"item_id": item_id, "summary_index": 0}
    kind = "response.reasoning_summary"
    steps = (
        {"type": f"{kind}_part.added", **where, "part": {**part, "text": ""}},
        {"type": f"{kind}_text.delta", **where, "delta": reasoning},
        {"type": f"{kind}_text.done", **where, "text": reasoning},
        {"type": f"{kind}_part.done", **where, "part": part},
    )
    return OutputItem(begun={**whole, "summary": [], "status": "in_progress"}, steps=steps, whole=whole)


def _unseal(text: str) -> str:
    if not text.startswith(OURS):
        return ""
    try:
        return base64.b64decode(text.removeprefix(OURS), validate=True).decode()
    except (binascii.Error, UnicodeError):
        return ""
