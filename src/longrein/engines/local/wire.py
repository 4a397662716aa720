"""What travels over the engine's sockets: msgpack frames, each preceded by its length (4 bytes, little endian).

Ids and logprobs travel as the bytes of int32 and float32 arrays.
"""

from __future__ import annotations

import socket
from typing import TypeVar

import msgspec

from longrein.engines.base import EngineInfo
from longrein.engines.local.manifest import Manifest
from longrein.types import FinishReason, Sampling

HEADER_BYTES = 4
Decoded = TypeVar("Decoded")


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sample one completion. ``call`` is unique within the connection."""

    call: int
    conversation_id: str
    prompt: bytes
    sampling: Sampling


class Watch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Send :class:`Sampled` for this call, which comes next."""

    call: int


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nobody waits for this call any more."""

    call: int


class Forget(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Free the KV of a conversation."""

    conversation_id: str


class Swap(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The shared block holds the weights of this policy version: take them."""

    policy_version: int


class SwapAdapter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The shared block holds, behind the weights, the adapter of this policy version: take it."""

    policy_version: int
    manifest: Manifest
    scalings: dict[str, float]
    """By the name of the weight that is adapted."""


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compute nothing until :class:`Resume`; requests and weights are taken all the same."""


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Go on computing."""


class ClearCache(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forget the KV of all that does not run."""


class Sampled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one step sampled for the watched calls of a connection: one token each."""

    calls: tuple[int, ...]
    token_ids: bytes
    logprobs: bytes
    policy_version: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A call's completion; the fields are those of :class:`~longrein.types.Completion`."""

    call: int
    token_ids: bytes
    logprobs: bytes
    finish_reason: FinishReason
    min_policy_version: int
    max_policy_version: int
    prefill_tokens: int


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request is malformed."""

    call: int
    message: str


class RefusedContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The prompt leaves no room in the context."""

    call: int
    message: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine could not finish this call."""

    call: int
    message: str


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine's first frame to a client."""

    info: EngineInfo


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine's first frame to its owner."""

    info: EngineInfo
    manifest: Manifest


class Swapped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine samples with this policy version from now on."""

    policy_version: int


class NotTaken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine could not take the weights."""

    message: str


class Obeyed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The owner's last command is carried out."""


NewWeights = Swap | SwapAdapter
FromOwner = NewWeights | Pause | Resume | ClearCache
Request = Generate | Watch | Cancel | Forget
Reply = Done | RefusedRequest | RefusedContext | Failed
ToClient = Hello | Sampled | Reply
ToOwner = Ready | Swapped | NotTaken | Obeyed

_ENCODER = msgspec.msgpack.Encoder()


def pack(frame: object) -> bytes:
    """One frame, ready to send."""
    payload = _ENCODER.encode(frame)
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


class FrameSplitter:
    """Cuts a byte stream into payloads."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add what arrived; returns the payloads that are now whole."""
        self._buffer += chunk
        payloads: list[bytes] = []
        start = 0
        while len(self._buffer) >= start + HEADER_BYTES:
            end = start + HEADER_BYTES + int.from_bytes(self._buffer[start : start + HEADER_BYTES], "little")
            if len(self._buffer) < end:
                break
            payloads.append(bytes(self._buffer[start + HEADER_BYTES : end]))
            start = end
        del self._buffer[:start]
        return payloads


def receive(connection: socket.socket, decoder: msgspec.msgpack.Decoder[Decoded]) -> Decoded:
    """Read exactly one frame from a blocking socket.

    Raises:
        EOFError: the other side closed.
        TimeoutError: the socket's own timeout passed.
    """
    size = int.from_bytes(_read_exactly(connection, HEADER_BYTES), "little")
    return decoder.decode(_read_exactly(connection, size))


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        chunk = connection.recv(size - len(chunks))
        if not chunk:
            raise EOFError
        chunks += chunk
    return bytes(chunks)
