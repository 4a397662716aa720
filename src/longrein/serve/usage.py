"""Counts of tokens, as both token routes report them."""

from __future__ import annotations

import msgspec


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``stream_options``."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request and its completions."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails | None


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> Usage:
    """With their sum. ``cached_tokens`` are known once a completion has ended."""
    return Usage(
        prompt_tokens=prompt_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        completion_tokens=completion_tokens,
        prompt_tokens_details=None if cached_tokens is None else PromptDetails(cached_tokens=cached_tokens),
    )
