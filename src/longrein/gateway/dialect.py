"""What a dialect is: how one family of agents writes requests and reads answers.

Everything behind a dialect speaks :class:`ChatRequest` and :class:`ChatReply`.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from longrein.errors import GatewayRequestError
from longrein.types import Message, Tool

AgentFinish = Literal["stop", "length", "tool_calls"]


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of an agent, in OpenAI form whatever the dialect was."""

    messages: tuple[Message, ...]
    """Normalised: roles system, user, assistant and tool only; text content as one string."""
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    """What the agent asked for; ``None`` when it did not say."""
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    """End the stream with a usage chunk."""
    asked: dict[str, Any] = {}
    """Every sampling parameter the agent named, honoured or not."""
    dialect: str = "chat"


class ChatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a :class:`ChatRequest`."""

    message: Message
    finish_reason: AgentFinish
    prompt_tokens: int
    completion_tokens: int


class Dialect(Protocol):
    """One wire format. Stateless."""

    @property
    def name(self) -> str:
        """Stored with each call."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """What may be sent in a stream while the engine works, any number of times."""
        ...

    def decode(self, body: bytes) -> ChatRequest:
        """Raises :class:`~longrein.errors.GatewayRequestError` for what is malformed or unsupported."""
        ...

    def encode(self, reply: ChatReply, model: str) -> bytes:
        """The whole answer as one JSON body."""
        ...

    def encode_stream(self, reply: ChatReply, request: ChatRequest, model: str) -> tuple[bytes, ...]:
        """The answer as server-sent events, the closing one last."""
        ...

    def encode_error(self, error: GatewayRequestError) -> bytes:
        """A JSON error body."""
        ...

    def encode_stream_error(self, error: GatewayRequestError) -> bytes:
        """The event that ends a stream which had already begun."""
        ...
