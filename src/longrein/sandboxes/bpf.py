"""A small assembler for seccomp filters: rules about system calls in, a classic BPF program out.

Source: the kernel's ``userspace-api/seccomp_filter``; ``struct sock_filter`` and ``struct seccomp_data`` of
``linux/filter.h`` and ``linux/seccomp.h``. Both machines we know are little-endian.
"""

from __future__ import annotations

import struct

import msgspec

_LOAD, _JUMP_EQUAL, _JUMP_BITS, _JUMP_FROM, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000


class Instruction(msgspec.Struct, frozen=True):
    """One ``struct sock_filter``."""

    code: int
    if_true: int
    if_false: int
    value: int

    def encoded(self) -> bytes:
        """As the kernel reads it."""
        return struct.pack("<HBBI", self.code, self.if_true, self.if_false, self.value)


class Deny(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The call fails with ``errno``, whatever its arguments."""

    call: int
    errno: int


class DenyBits(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It fails where the low 32 bits of an argument have any bit of ``mask``."""

    call: int
    argument: int
    mask: int
    errno: int


class DenyValues(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It fails where the low 32 bits of an argument are one of ``values``."""

    call: int
    argument: int
    values: tuple[int, ...]
    errno: int


class AllowValues(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It fails where the low 32 bits of an argument are none of ``values``."""

    call: int
    argument: int
    values: tuple[int, ...]
    errno: int


Rule = Deny | DenyBits | DenyValues | AllowValues


def assemble(machine: int, first_foreign_call: int, no_such_call: int, rules: tuple[Rule, ...]) -> bytes:
    """A filter that allows what no rule denies.

    Args:
        machine: ``AUDIT_ARCH_*`` of the calls that the rules are about. Calls made in the manner of another machine
            (32-bit ones, say) kill the process, since their numbers mean something else.
        first_foreign_call: numbers from here on belong to another table of the same machine (x32).
        no_such_call: the errno of those.
        rules: at most one for each call.
    """
    program = [_load(_MACHINE_AT), Instruction(_JUMP_EQUAL, 1, 0, machine), _return(KILL), _load(_NUMBER_AT)]
    program += [Instruction(_JUMP_FROM, 0, 1, first_foreign_call), _return(ERRNO | no_such_call)]
    for rule in rules:
        body = _body(rule)
        program += [Instruction(_JUMP_EQUAL, 0, len(body), rule.call), *body]
    program.append(_return(ALLOW))
    return b"".join(instruction.encoded() for instruction in program)


def _body(rule: Rule) -> list[Instruction]:
    """What is done for a call that matched; every way through it returns."""
    denied = _return(ERRNO | rule.errno)
    if isinstance(rule, Deny):
        return [denied]
    load = _load(_ARGUMENTS_AT + 8 * rule.argument)
    if isinstance(rule, DenyBits):
        return [load, Instruction(_JUMP_BITS, 0, 1, rule.mask), denied, _return(ALLOW)]
    # Each comparison jumps over the remaining ones and the answer for "none of them".
    remaining = range(len(rule.values), 0, -1)
    tests = [Instruction(_JUMP_EQUAL, left, 0, value) for left, value in zip(remaining, rule.values, strict=True)]
    if isinstance(rule, DenyValues):
        return [load, *tests, _return(ALLOW), denied]
    return [load, *tests, denied, _return(ALLOW)]


def _load(offset: int) -> Instruction:
    return Instruction(_LOAD, 0, 0, offset)


def _return(verdict: int) -> Instruction:
    return Instruction(_RETURN, 0, 0, verdict)
