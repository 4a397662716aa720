"""Prompts that are too long by far, known before they are rendered: tokenising megabytes takes seconds."""

from __future__ import annotations

from longrein.gateway.dialect import ChatRequest

SHOWN_WHOLE = ("user", "tool")
"""Messages whose text every chat template writes, but for white space around it."""
NFC_SHRINKS = 3
"""Tokenizers that normalise may make one character of at most so many; of ASCII they make nothing else."""


def tokens_too_many(request: ChatRequest, context_length: int, longest_token: int) -> int:
    """How many tokens the prompt has at least, if they cannot fit; 0 if they may, by these bounds.

    Args:
        request: what was asked.
        context_length: in tokens.
        longest_token: the characters that one token stands for at most.
    """
    if request.size_bytes <= context_length * longest_token:
        return 0
    texts: list[str] = [message.get("content") or "" for message in request.messages if message["role"] in SHOWN_WHOLE]
    tokens = sum(map(_characters, texts)) // longest_token
    return tokens if tokens > context_length else 0


def _characters(text: str) -> int:
    said = len(text.strip())
    return said if text.isascii() else said // NFC_SHRINKS
