"""A transport on which the head of an answer leaves together with what follows it at once.

uvicorn writes them one after the other, and each write costs as much as a tenth of a whole call.
"""

from __future__ import annotations

import asyncio
from typing import Any

HEAD = b"HTTP/1.1 "


class HeadedTransport(asyncio.Transport):
    """Holds a head back until the next write, or until this turn of the event loop is over."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, or hold what begins like a head."""
        if not self._held and bytes(data[: len(HEAD)]) == HEAD:
            self._held = bytes(data)
            self._loop.call_soon(self._release)
        else:
            held, self._held = self._held, b""
            self._transport.write(held + data if held else data)

    def close(self) -> None:
        """Close once everything is written."""
        self._release()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._held = b""
        self._transport.abort()

    def is_closing(self) -> bool:
        """See :class:`asyncio.BaseTransport`."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See :class:`asyncio.BaseTransport`."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """See :class:`asyncio.ReadTransport`."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """See :class:`asyncio.ReadTransport`."""
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """See :class:`asyncio.BaseTransport`."""
        self._transport.set_protocol(protocol)

    def _release(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)
