"""uvicorn's HTTP connection, with bounds on what one client may cost: bytes, headers, connections, time."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar, NoReturn, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from longrein.errors import GatewayRequestError
from longrein.gateway.head import HeadedTransport
from longrein.gateway.resets import SCOPE_KEY, Resets
from longrein.gateway.settings import HttpBounds

MAX_PIPELINED = 16
"""Requests that one connection may send before the first of them is answered."""
PHRASES = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class BoundedConnection(HttpToolsProtocol):
    """One connection. Over a bound it is refused and closed.

    The parser knows no bounds of its own, and keeps whatever is not a body in memory until it is whole.
    """

    bounds: ClassVar[HttpBounds] = HttpBounds()
    _in_head = False
    _unanswered = 0
    _headers_seen = 0
    _head_bytes = 0
    _beside_body = 0
    """Bytes of this request that are no body: head, chunk sizes, trailers."""
    _unread_bytes = 0
    _used_at_s = 0.0
    _refusal = GatewayRequestError("this is not HTTP", status=400, code="bad_http")
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, bounds: HttpBounds) -> type[BoundedConnection]:
        """The class of one server's connections."""
        return type(cls.__name__, (cls,), {"bounds": bounds})

    @property
    def idle(self) -> bool:
        """No request is under way."""
        return not self._in_head and self._unanswered == 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  - uvicorn names a narrower one
        """See :class:`asyncio.Protocol`."""
        super().connection_made(HeadedTransport(transport, self.loop))  # type: ignore[arg-type]  - it has what of it is used
        self._resets = Resets()
        self._used_at_s = time.monotonic()
        self._start_head_timer()
        if len(self.connections) > self.bounds.max_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self._stop_head_timer()
        self._stop_write_timer()
        if exc is not None:
            self._resets.happened()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        self._beside_body += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._beside_body > self.bounds.max_header_bytes:
            self._refuse(self._too_large())
        elif self._in_head and self._head_timer is None:
            self._start_head_timer()

    def on_message_begin(self) -> None:
        """See :class:`httptools.HttpRequestParser`."""
        super().on_message_begin()
        self._resets.forget()
        scope: dict[str, Any] = cast("Any", self.scope)
        scope[SCOPE_KEY] = self._resets
        self._in_head = True
        self._headers_seen = self._head_bytes = self._beside_body = self._unread_bytes = 0

    def on_url(self, url: bytes) -> None:
        """See :class:`httptools.HttpRequestParser`."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """See :class:`httptools.HttpRequestParser`."""
        self._headers_seen += 1
        self._count_head(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """See :class:`httptools.HttpRequestParser`."""
        self._in_head = False
        self._stop_head_timer()
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop_parser(GatewayRequestError("too many requests at once", status=400, code="too_many_pipelined"))
        super().on_headers_complete()
        self._unanswered += 1

    def on_body(self, body: bytes) -> None:
        """See :class:`httptools.HttpRequestParser`."""
        self._beside_body -= len(body)
        if self._unanswered == 0:
            # Refused before its body was looked at, with a wrong key for instance.
            self._unread_bytes += len(body)
            if self._unread_bytes > self.bounds.max_body_bytes:
                self.transport.abort()
        super().on_body(body)

    def on_response_complete(self) -> None:
        """A request has its answer."""
        self._unanswered -= 1
        self._used_at_s = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not take its answer: it has a while to begin."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.bounds.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It does."""
        self._stop_write_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """The parser has stopped, at a bound or at what it cannot read."""
        self._refuse(self._refusal)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.bounds.max_header_bytes or self._headers_seen > self.bounds.max_headers:
            self._stop_parser(self._too_large())

    def _too_large(self) -> GatewayRequestError:
        bounds = f"{self.bounds.max_header_bytes} bytes in {self.bounds.max_headers} headers"
        return GatewayRequestError(f"the request's head is over {bounds}", status=431, code="headers_too_large")

    def _stop_parser(self, refusal: GatewayRequestError) -> NoReturn:
        self._refusal = refusal
        raise refusal

    def _refuse(self, refusal: GatewayRequestError) -> None:
        """Answer in a form that reads as an error in every dialect (nothing is known of the request), and close."""
        if self._unanswered > 0 and (self.pipeline or self.cycle.response_started):
            # In the middle of another answer, which must not seem to have come to its end.
            self.transport.abort()
        else:
            self.transport.write(_response(refusal))
            self.transport.close()

    def _make_room(self) -> None:
        """The connection that has idled longest makes room for this one."""
        others = [other for other in self.connections if isinstance(other, BoundedConnection) and other is not self]
        idle = [other for other in others if other.idle and not other.transport.is_closing()]
        if idle:
            min(idle, key=lambda other: other._used_at_s).transport.close()
        else:
            self._refuse(GatewayRequestError("too many connections", status=503, code="too_many_connections"))

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.bounds.header_timeout_s, self._refuse_slow_head)

    def _refuse_slow_head(self) -> None:
        self._refuse(
            GatewayRequestError(
                f"no whole request head within {self.bounds.header_timeout_s:g} s", status=408, code="request_timeout"
            )
        )

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _response(refusal: GatewayRequestError) -> bytes:
    error = {"type": "invalid_request_error", "code": refusal.code, "message": str(refusal), "param": None}
    body = msgspec.json.encode({"type": "error", "error": error})
    head = (
        f"HTTP/1.1 {refusal.status} {PHRASES[refusal.status]}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
