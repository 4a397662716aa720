"""Sockets without threads: what has arrived is read between two decode steps."""

from __future__ import annotations

import selectors
import socket
from typing import Generic, TypeVar

import msgspec

from longrein.engines.local import wire

_CHUNK_BYTES = 1 << 18
Frame = TypeVar("Frame")


class Letter(msgspec.Struct, Generic[Frame], frozen=True, kw_only=True):
    """A frame and the connection it came from."""

    connection: int
    frame: Frame


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """The other side of a connection closed, or sent what is no frame."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A connection was accepted."""


class _Line:
    """One connection: what has come in and what still has to go out."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.splitter = wire.FrameSplitter()
        self.outbox = bytearray()


class Mailbox(Generic[Frame]):
    """All connections of a listening socket. Never blocks but in :meth:`poll` with a timeout."""

    def __init__(self, listener: socket.socket, decoder: msgspec.msgpack.Decoder[Frame]) -> None:
        self._listener = listener
        self._decoder = decoder
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, _Line] = {}
        self._next_connection = 0
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)

    def watch(self, other: socket.socket) -> None:
        """Have :meth:`poll` return early when ``other`` is readable; the caller reads it."""
        self._selector.register(other, selectors.EVENT_READ, other)

    def poll(self, timeout_s: float | None) -> list[Letter[Frame | Opened | Closed]]:
        """What has happened, waiting at most ``timeout_s`` for the first (``None``: for ever)."""
        letters: list[Letter[Frame | Opened | Closed]] = []
        for key, events in self._selector.select(timeout_s):
            if key.data is None:
                letters.append(self._accept())
            elif isinstance(key.data, int):
                if events & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if events & selectors.EVENT_READ:
                    letters += self._read(key.data)
        return letters

    def send(self, connection: int, frame: object) -> None:
        """Send as soon as the other side takes it. A connection that is gone is ignored."""
        if connection in self._lines:
            self._lines[connection].outbox += wire.pack(frame)
            self._flush(connection)

    def _accept(self) -> Letter[Frame | Opened | Closed]:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        number = self._next_connection
        self._next_connection += 1
        self._lines[number] = _Line(connection)
        self._selector.register(connection, selectors.EVENT_READ, number)
        return Letter(connection=number, frame=Opened())

    def _read(self, number: int) -> list[Letter[Frame | Opened | Closed]]:
        line = self._lines.get(number)
        if line is None:
            return []
        try:
            chunk = line.socket.recv(_CHUNK_BYTES)
            frames = [self._decoder.decode(payload) for payload in line.splitter.feed(chunk)]
        except BlockingIOError:
            return []
        except (OSError, msgspec.ValidationError, msgspec.DecodeError):
            chunk, frames = b"", []
        letters: list[Letter[Frame | Opened | Closed]] = [Letter(connection=number, frame=frame) for frame in frames]
        if not chunk:
            self._drop(number)
            letters.append(Letter(connection=number, frame=Closed()))
        return letters

    def _flush(self, number: int) -> None:
        line = self._lines.get(number)
        if line is None:
            return
        try:
            del line.outbox[: line.socket.send(line.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            # The read side will report it as closed.
            line.outbox.clear()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.outbox else 0)
        self._selector.modify(line.socket, wanted, number)

    def _drop(self, number: int) -> None:
        line = self._lines.pop(number)
        self._selector.unregister(line.socket)
        line.socket.close()
