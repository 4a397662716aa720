"""What a run decides about its gateway."""

from __future__ import annotations

import msgspec


class HttpBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What one client may cost the gateway in memory, connections and time."""

    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout_s: float = 60.0
    """From the end of the headers to the end of the body."""
    max_header_bytes: int = 64 * 1024
    """Request line and headers together."""
    max_headers: int = 128
    header_timeout_s: float = 30.0
    """From a request's first byte (a connection's start) to the end of its headers."""
    write_timeout_s: float = 60.0
    """A client that takes nothing of its answer for so long is cut off."""
    max_requests: int = 32
    """Of one session at once."""
    max_connections: int = 2048
    """Of the whole gateway, and at most half of the process's file descriptors. Over it the one that has idled longest
    is closed; if none idles, the new one is refused."""


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The run's own sampling and limits; agents cannot change them."""

    model: str = "policy"
    """The name that agents see."""
    seed: int = 0
    """Of all sampling: each call's own seed comes of it, the session's id and the call's number."""
    temperature: float = 1.0
    top_p: float = 1.0
    """This and the next two, where they cut the distribution: only for what is never trained."""
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 1024
    """Upper bound for one completion. The smaller of it and the agent's own wins."""
    context_length: int = 8192
    max_calls: int = 200
    """Completions sampled for one session; after that it gets a final answer that nobody sampled."""
    max_sampled_tokens: int = 10_000_000
    """The same for the tokens of all its completions; the last one is cut to what is left."""
    max_session_s: float = 86_400.0
    """The same for its wall-clock time, from its opening; a generation under way is cancelled."""
    max_context_refusals: int = 3
    """Prompts too long for the context that are refused; after that, these too get the final answer."""
    engine_timeout_s: float = 1800.0
    """One try at a completion, its time in the engine's queue included. Long generations are legitimate."""
    retry_delay_s: float = 0.1
    """Before the second try at an engine that failed; four times as long before the third."""
    abandon_grace_s: float = 15.0
    """How long a generation goes on after its last client left, so that the same request again may join it. Gemini CLI
    asks again 5 to 13 s after it gave up."""
    keep_alive_s: float = 10.0
    """Silence after which a waiting stream gets a comment."""
    http: HttpBounds = HttpBounds()
