"""The end of a stream: everything is read, only the last bytes are kept."""

from __future__ import annotations

import asyncio
from typing import IO


class Tail(asyncio.Protocol):
    """Reads a pipe to its end and keeps its last ``limit_bytes``."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self._transport: asyncio.BaseTransport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def follow(cls, pipe: IO[bytes], limit_bytes: int) -> Tail:
        """Start to read ``pipe``, which is ours from now on."""
        tail = cls(limit_bytes)
        await asyncio.get_running_loop().connect_read_pipe(lambda: tail, pipe)
        return tail

    @property
    def data(self) -> bytes:
        """What was kept."""
        return bytes(self._kept[-self._limit_bytes :])

    def stop(self) -> None:
        """Read no further: for a pipe that somebody out of reach still holds open."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._kept += data
        if len(self._kept) > 2 * self._limit_bytes:
            del self._kept[: -self._limit_bytes]

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        if not self.ended.done():
            self.ended.set_result(None)
