"""What a dialect is: how one family of agents writes requests and reads answers.

Everything behind a dialect speaks :class:`ChatRequest` and :class:`ChatReply`.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from longrein.errors import GatewayRequestError
from longrein.types import Message, Tool

AgentFinish = Literal["stop", "length", "tool_calls"]
CallerRole = Literal["", "agent", "subagent", "compaction", "auxiliary"]


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request, read whole."""

    path: str
    """Without the session's secret: ``/v1/chat/completions``."""
    query: str = ""
    """As sent, without the question mark."""
    headers: dict[str, str] = {}
    """Names in lower case. Of a repeated header the first counts."""
    body: bytes = b""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, as far as an agent says so in its headers; every field may be empty."""

    thread: str = ""
    """The agent's own name for the conversation."""
    parent_thread: str = ""
    """The conversation that started this one."""
    role: CallerRole = ""
    """What the agent itself calls this request."""
    evidence: str = ""
    """The header that said so."""


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
    private: dict[str, Any] = {}
    """What the dialect itself needs to write the answer; nobody else reads it."""
    caller: Caller = Caller()
    size_bytes: int = 0
    """Of the body that it came in; 0 where it came in none."""


class ChatReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a :class:`ChatRequest`."""

    message: Message
    finish_reason: AgentFinish
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that the engine had in its cache."""
    stop_sequence: str = ""
    """The stop string that ended the answer, if one did."""


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

    def decode(self, arrival: Arrival) -> ChatRequest:
        """Raises :class:`~longrein.errors.GatewayRequestError` for what is malformed or unsupported."""
        ...

    def encode(self, reply: ChatReply, request: ChatRequest, model: str) -> bytes:
        """The whole answer as one JSON body."""
        ...

    def encode_stream(self, reply: ChatReply, request: ChatRequest, model: str) -> tuple[bytes, ...]:
        """The answer as server-sent events, the closing one last."""
        ...

    def encode_models(self, model: str, context_length: int) -> bytes:
        """The list of models, which has one."""
        ...

    def encode_model(self, model: str, context_length: int) -> bytes:
        """The one model."""
        ...

    def encode_error(self, error: GatewayRequestError) -> bytes:
        """A JSON error body."""
        ...

    def encode_stream_error(self, error: GatewayRequestError) -> bytes:
        """The event that ends a stream which had already begun."""
        ...


class CountingDialect(Dialect, Protocol):
    """A dialect that can also say how long a prompt is."""

    def decode_count(self, arrival: Arrival) -> ChatRequest:
        """The same as :meth:`Dialect.decode` for the body of a counting request."""
        ...

    def encode_count(self, prompt_tokens: int) -> bytes:
        """The answer as one JSON body."""
        ...
