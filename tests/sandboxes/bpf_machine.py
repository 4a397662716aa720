"""The kernel's side of a seccomp filter: a classic BPF machine, as far as our assembler uses it."""

from __future__ import annotations

import struct


def verdict(program: bytes, *, machine: int, call: int, arguments: tuple[int, ...]) -> int:
    """What the kernel would do with a system call. Source: ``seccomp_check_filter`` and ``bpf_prog_run``."""
    data = struct.pack("<iIQ6Q", call, machine, 0, *arguments)
    code = list(struct.iter_unpack("<HBBI", program))
    assert 0 < len(code) <= 4096
    at, accumulator = 0, 0
    for _ in code:  # no backward jumps: it ends within as many steps
        what, if_true, if_false, value = code[at]
        at += 1
        if what == 0x20:
            assert value % 4 == 0 and value < len(data)
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif what == 0x06:
            return int(value)
        else:
            holds = {0x15: accumulator == value, 0x45: bool(accumulator & value), 0x35: accumulator >= value}[what]
            at += if_true if holds else if_false
    raise AssertionError("the program has no end")
