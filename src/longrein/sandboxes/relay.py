"""The one way out of a sandbox: listed loopback ports, forwarded byte by byte to the same port of the host."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import cast

from longrein.errors import SandboxError
from longrein.sandboxes.netns_listener import is_in_our_user_namespace, listeners_in

_LISTENER = Path(__file__).with_name("netns_listener.py")
_LISTENER_TIMEOUT_S = 10.0
_HOST = "127.0.0.1"


class LoopbackRelay:
    """Listens inside a network namespace and connects outside."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._ends: set[_End] = set()
        self._closed = False

    async def open(self, pid: int, ports: tuple[int, ...]) -> None:
        """Listen on ``ports`` in the network namespace of ``pid``.

        Raises:
            SandboxError: the namespace could not be entered, or the relay was closed meanwhile.
        """
        if not ports:
            return
        loop = asyncio.get_running_loop()
        for listener, port in zip(await _listeners(pid, ports), ports, strict=True):
            # Without `start_serving` nothing is awaited: no cancellation comes between a socket and its owner.
            self._servers.append(
                await loop.create_server(lambda port=port: _End(self._ends, port), sock=listener, start_serving=False)
            )
        for server in self._servers:
            if not self._closed:
                await server.start_serving()
        if self._closed:
            self.close()
            raise SandboxError("the sandbox was closed while it started")

    def close(self) -> None:
        """Close the listeners and cut what is open. Safe to call twice."""
        self._closed = True
        for server in self._servers:
            server.close()
        for end in tuple(self._ends):
            end.abort()


class _End(asyncio.Protocol):
    """One end of a forwarded connection; what it receives, its peer sends."""

    def __init__(self, ends: set[_End], port: int, peer: _End | None = None) -> None:
        self._ends = ends
        self._port = port
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._half_closed = False
        self._connecting: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """Cut the connection."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._ends.add(self)
        if self._peer is None:
            self._transport.pause_reading()
            self._connecting = asyncio.create_task(self._connect())
        else:
            self._peer.join(self)

    def join(self, peer: _End) -> None:
        """The connection outside is there."""
        self._peer = peer
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        else:
            peer.abort()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._peer is not None and self._peer._transport is not None:
            self._peer._transport.write(data)

    def eof_received(self) -> bool:
        """Called by the loop. The other direction stays open."""
        self._half_closed = True
        peer = self._peer
        if peer is None or peer._transport is None or peer._half_closed:
            return False
        if peer._transport.can_write_eof() and not peer._transport.is_closing():
            peer._transport.write_eof()
        return True

    def pause_writing(self) -> None:
        """Called by the loop: we cannot send as fast as the peer receives."""
        if self._peer is not None and self._peer._transport is not None:
            self._peer._transport.pause_reading()

    def resume_writing(self) -> None:
        """Called by the loop."""
        if self._peer is not None and self._peer._transport is not None:
            self._peer._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._ends.discard(self)
        if self._peer is not None and self._peer._transport is not None:
            self._peer._transport.close()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _End(self._ends, self._port, self), _HOST, self._port)
        except OSError:
            self.abort()


async def _listeners(pid: int, ports: tuple[int, ...]) -> list[socket.socket]:
    try:
        if os.geteuid() == 0 and is_in_our_user_namespace(pid):
            return listeners_in(pid, ports)
    except OSError as error:
        raise SandboxError(f"no listener inside the sandbox: {error}") from error
    return await _listeners_of_helper(pid, ports)


async def _listeners_of_helper(pid: int, ports: tuple[int, ...]) -> list[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = _start_listener(pid, theirs.fileno(), ports)
        try:
            received = await _receive(ours, len(ports))
        finally:
            process.kill()  # it has nothing more to do
            _, complaint = process.communicate()
    if len(received) != len(ports):
        raise SandboxError(f"no listener inside the sandbox: {complaint.decode(errors='replace').strip()[-300:]}")
    return received


def _start_listener(pid: int, channel: int, ports: tuple[int, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_LISTENER), str(pid), str(channel), *map(str, ports)],
        pass_fds=(channel,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


async def _receive(channel: socket.socket, count: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    channel.setblocking(False)
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(channel.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        async with asyncio.timeout(_LISTENER_TIMEOUT_S):
            await ready
    except TimeoutError as error:
        raise SandboxError(f"no listener inside the sandbox within {_LISTENER_TIMEOUT_S} s") from error
    finally:
        loop.remove_reader(channel.fileno())
    _, descriptors, _, _ = socket.recv_fds(channel, 1, count)
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]
