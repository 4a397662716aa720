"""Listen on 127.0.0.1 inside another process's network namespace.

As root, a thread of ours enters and ends there: :func:`listeners_in`. Where the network belongs to a user namespace it
takes a process of its own, because one with threads may not enter that: ``python -I -S netns_listener.py PID SOCKET_FD
PORT...``, with nothing but the standard library, hands the sockets back.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import sys
import threading

_NS_GET_USERNS = 0xB701  # ioctl_ns(2)
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def is_in_our_user_namespace(pid: int) -> bool:
    """Whether the network of ``pid`` belongs to our own user namespace, so that root may enter it as it is."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        owner = fcntl.ioctl(network, _NS_GET_USERNS)
    except PermissionError:
        return False
    finally:
        os.close(network)
    try:
        return os.stat(owner).st_ino == os.stat("/proc/self/ns/user").st_ino  # noqa: PTH116 - of a descriptor
    finally:
        os.close(owner)


def listeners_in(pid: int, ports: tuple[int, ...]) -> list[socket.socket]:
    """Sockets that listen on ``ports`` in the network of ``pid``, which is in our user namespace. Takes no time.

    Raises:
        OSError: the network cannot be entered, or a port is taken in it.
    """
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def enter_and_listen() -> None:
        try:
            network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            try:
                _setns(network, _CLONE_NEWNET)
            finally:
                os.close(network)
            made.extend(_listener(port) for port in ports)
        except OSError as error:
            failed.append(error)

    # A namespace is the thread's, not the process's; this one ends, so there is no way back to be found.
    thread = threading.Thread(target=enter_and_listen)
    thread.start()
    thread.join()
    if failed:
        for listener in made:
            listener.close()
        raise failed[0]
    return made


def _enter(pid: int) -> None:
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    # The user namespace that owns the network: only there do we have the right to enter it.
    owner = fcntl.ioctl(network, _NS_GET_USERNS)
    if os.stat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:  # noqa: PTH116 - of a descriptor
        _setns(owner, _CLONE_NEWUSER)
    _setns(network, _CLONE_NEWNET)


def _setns(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def main() -> None:
    """Enter, listen, hand over."""
    pid, channel, *ports = (int(argument) for argument in sys.argv[1:])
    _enter(pid)
    listeners = [_listener(port) for port in ports]
    with socket.socket(fileno=channel) as handover:
        socket.send_fds(handover, [b"x"], [listener.fileno() for listener in listeners])


if __name__ == "__main__":
    main()
