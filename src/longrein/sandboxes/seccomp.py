"""What the processes of a sandbox may not ask of the kernel.

A deny list: agents are node, Python, Rust and Go programs that run whatever they like, so everything is allowed but
what reaches out of a sandbox (namespaces, mounts, keys, other processes' memory, modules, raw devices) and the parts
of the kernel with a history of ways out (io_uring, bpf, userfaultfd, perf). Source: the default profiles of Docker
and flatpak, for what ordinary programs never miss.
"""

from __future__ import annotations

import errno
import logging
import platform
import socket
from functools import cache
from pathlib import Path

import msgspec

from longrein.sandboxes.bpf import AllowValues, Deny, DenyBits, DenyValues, Rule, assemble
from longrein.sandboxes.syscalls import SYSCALLS

_LOG = logging.getLogger(__name__)
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_NEW_TIME = 0x80
_PUSH_INTO_TERMINAL = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: type into the terminal of whoever started us."""
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux, 32-bit Linux, each with an old version number, and the question which it is."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)
"""16 is netlink, with which every C library asks for its interfaces. AF_VSOCK is not here: it knows no network
namespaces and reaches the hypervisor."""
_MISSING = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
"""Not there, as on an older kernel: C libraries and libuv then use what was before. Arguments of clone3 lie in memory,
where no filter can look."""
_FORBIDDEN = tuple(
    name for name in SYSCALLS if name not in (*_MISSING, "clone", "unshare", "ioctl", "personality", "socket")
)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One instruction set, as seccomp names it."""

    audit_arch: int
    first_foreign_call: int


MACHINES = {
    "x86_64": Machine(audit_arch=0xC000003E, first_foreign_call=0x40000000),
    "aarch64": Machine(audit_arch=0xC00000B7, first_foreign_call=0x40000000),
}


def rules(machine: str) -> tuple[Rule, ...]:
    """What is denied on ``machine``, a key of :data:`MACHINES`."""
    number = {name: numbers.x86_64 if machine == "x86_64" else numbers.aarch64 for name, numbers in SYSCALLS.items()}
    denied: list[Rule] = [Deny(call=number[name], errno=errno.EPERM) for name in _FORBIDDEN if number[name] >= 0]
    denied += [Deny(call=number[name], errno=errno.ENOSYS) for name in _MISSING]
    return (
        *denied,
        DenyBits(call=number["clone"], argument=0, mask=_NEW_NAMESPACES, errno=errno.EPERM),
        DenyBits(call=number["unshare"], argument=0, mask=_NEW_NAMESPACES | _NEW_TIME, errno=errno.EPERM),
        DenyValues(call=number["ioctl"], argument=1, values=_PUSH_INTO_TERMINAL, errno=errno.EPERM),
        AllowValues(call=number["personality"], argument=0, values=_PERSONALITIES, errno=errno.EPERM),
        AllowValues(call=number["socket"], argument=0, values=_FAMILIES, errno=errno.EAFNOSUPPORT),
    )


def program(machine: str) -> bytes:
    """The filter for ``machine``, as ``bwrap --seccomp`` reads it."""
    known = MACHINES[machine]
    return assemble(known.audit_arch, known.first_foreign_call, errno.ENOSYS, rules(machine))


@cache
def own_program() -> bytes:
    """The filter for this machine; empty, which the log says once, where there is none."""
    machine = platform.machine()
    if machine not in MACHINES:
        _LOG.warning("no seccomp filter is known for %s: sandboxes run without one", machine)
        return b""
    if not Path("/proc/sys/kernel/seccomp").exists():
        _LOG.warning("this kernel has no seccomp filters: sandboxes run without one")
        return b""
    return program(machine)
