"""Keeps code under test from signalling, tracing or limiting other processes, its judge above all: a seccomp filter.

Part of a hidden test. Who kills the judge would not be judged: by a signal, by one that the kernel sends for a file
(``F_SETOWN``), or by taking its processor time and files away (``prlimit`` of another process). Where the kernel or the
processor is not known, nothing is forbidden. Source: the kernel's ``userspace-api/seccomp_filter``; system call numbers
of ``asm/unistd``.
"""

from __future__ import annotations

import ctypes
import platform
import struct

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1
_NUMBER_AT, _ARCH_AT = 0, 4
_ARGUMENT_AT = (16, 24)
"""The lower halves of the first two arguments, on machines that begin with the low bytes."""
_ARCHES = {
    # kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal, ptrace, process_vm_writev
    "x86_64": (0xC000003E, (62, 200, 234, 129, 297, 424, 101, 311)),
    "aarch64": (0xC00000B7, (129, 130, 131, 138, 240, 424, 117, 271)),
}
_BY_ARGUMENT = {
    # prlimit64, fcntl, ioctl
    "x86_64": (302, 72, 16),
    "aarch64": (261, 25, 29),
}
_FCNTL_OWNS = (8, 10, 15)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX."""
_IOCTL_OWNS = (0x8901, 0x8902)
"""FIOSETOWN, SIOCSPGRP."""
_X32 = 0x40000000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filters", ctypes.c_char_p))


def forbid_signals() -> None:
    """From here on, this process and what it starts can send no signals."""
    if platform.machine() not in _ARCHES:
        return
    arch, numbers = _ARCHES[platform.machine()]
    prlimit, fcntl, ioctl = _BY_ARGUMENT[platform.machine()]
    lines = [_line(_LOAD, _ARCH_AT), _line(_EQUAL, arch, yes=1), _line(_RETURN, _REFUSE), _line(_LOAD, _NUMBER_AT)]
    lines += [_line(_AT_LEAST, _X32, no=1), _line(_RETURN, _REFUSE)]
    for number in numbers:
        lines += [_line(_EQUAL, number, no=1), _line(_RETURN, _REFUSE)]
    lines += _refused_but(prlimit, 0)
    lines += [*_refused_for(fcntl, _FCNTL_OWNS), *_refused_for(ioctl, _IOCTL_OWNS), _line(_RETURN, _ALLOW)]
    program = _Program(len(lines), b"".join(lines))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0)


def _refused_but(number: int, first: int) -> list[bytes]:
    """A call is refused unless its first argument is this."""
    block = [
        _line(_LOAD, _ARGUMENT_AT[0]),
        _line(_EQUAL, first, no=1),
        _line(_RETURN, _ALLOW),
        _line(_RETURN, _REFUSE),
    ]
    return [_line(_EQUAL, number, no=len(block)), *block]


def _refused_for(number: int, second: tuple[int, ...]) -> list[bytes]:
    """A call is refused where its second argument is one of these."""
    block = [_line(_LOAD, _ARGUMENT_AT[1])]
    for value in second:
        block += [_line(_EQUAL, value, no=1), _line(_RETURN, _REFUSE)]
    block.append(_line(_RETURN, _ALLOW))
    return [_line(_EQUAL, number, no=len(block)), *block]


def _line(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)
