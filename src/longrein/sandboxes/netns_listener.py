"""Helper process: listen on 127.0.0.1 inside another process's network namespace, and hand the sockets back.

Run as ``python -I -S netns_listener.py PID SOCKET_FD PORT...``: only the standard library, and a process of its own,
because a process with threads may not enter a user namespace.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import sys

_NS_GET_USERNS = 0xB701  # ioctl_ns(2)
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


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
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
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
