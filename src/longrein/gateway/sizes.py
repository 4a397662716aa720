"""How many parts one request may have. Agents have dozens of tools and hundreds of messages; each part costs time."""

from __future__ import annotations

from longrein.errors import GatewayRequestError
from longrein.gateway.dialect import ChatRequest

MAX_MESSAGES = 10_000
MAX_TOOLS = 2_000
MAX_CALLS = 2_000
"""Tool calls of one turn."""


def check_sizes(request: ChatRequest) -> None:
    """Raises :class:`GatewayRequestError` (400) for a request of too many messages, tools, or calls in one turn."""
    _check(len(request.messages), MAX_MESSAGES, "messages")
    _check(len(request.tools), MAX_TOOLS, "tools")
    calls = max((len(message.get("tool_calls") or ()) for message in request.messages), default=0)
    _check(calls, MAX_CALLS, "tool calls in one turn")


def _check(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise GatewayRequestError(
            f"the request has {count} {what}, where {limit} are allowed", status=400, code="request_too_large"
        )
