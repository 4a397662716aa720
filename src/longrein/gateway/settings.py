"""What a run decides about its gateway."""

from __future__ import annotations

import msgspec


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The run's own sampling and limits; agents cannot change them."""

    model: str = "policy"
    """The name that agents see."""
    temperature: float = 1.0
    max_tokens: int = 1024
    """Upper bound for one completion. The smaller of it and the agent's own wins."""
    context_length: int = 8192
    max_calls: int = 200
    """Completions sampled for one session; after that it gets a final answer that nobody sampled."""
    max_body_bytes: int = 4 * 1024 * 1024
    keep_alive_s: float = 10.0
    """Silence after which a waiting stream gets a comment."""
    retry_delay_s: float = 0.1
    """Before the second try at an engine that failed; four times as long before the third."""
