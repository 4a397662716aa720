"""The filter of system calls: what the program says, and what the kernel makes of it."""

from __future__ import annotations

import errno
import platform
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrein.sandboxes.base import Sandbox
from longrein.sandboxes.bpf import ALLOW, ERRNO, KILL, AllowValues, Deny, DenyBits, DenyValues, Rule, assemble
from longrein.sandboxes.seccomp import MACHINES, own_program, program, rules
from longrein.sandboxes.syscalls import SYSCALLS
from tests.sandboxes.bpf_machine import verdict
from tests.sandboxes.inside import python

WORD = st.one_of(st.integers(0, 8), st.integers(0, 2**32 - 1))
RULE_KINDS = st.one_of(
    st.builds(Deny, call=st.just(0), errno=st.integers(1, 130)),
    st.builds(DenyBits, call=st.just(0), argument=st.integers(0, 5), mask=WORD, errno=st.integers(1, 130)),
    *(
        st.builds(
            kind,
            call=st.just(0),
            argument=st.integers(0, 5),
            values=st.lists(WORD, min_size=1, max_size=5).map(tuple),
            errno=st.integers(1, 130),
        )
        for kind in (DenyValues, AllowValues)
    ),
)


def expected(rule: Rule, arguments: tuple[int, ...]) -> int:
    """The rule, read as a sentence."""
    denied = ERRNO | rule.errno
    if isinstance(rule, Deny):
        return denied
    low = arguments[rule.argument] & 0xFFFFFFFF
    if isinstance(rule, DenyBits):
        return denied if low & rule.mask else ALLOW
    return denied if (low in rule.values) == isinstance(rule, DenyValues) else ALLOW


@settings(deadline=None, max_examples=200)
@given(
    kinds=st.lists(RULE_KINDS, max_size=6),
    call=st.integers(0, 7),
    arguments=st.tuples(*[st.one_of(WORD, st.integers(0, 2**64 - 1))] * 6),
)
def test_the_assembled_program_does_what_its_rules_say(
    kinds: list[Rule], call: int, arguments: tuple[int, ...]
) -> None:
    from msgspec.structs import replace

    rules = tuple(replace(rule, call=number) for number, rule in enumerate(kinds))
    built = assemble(7, 0x40000000, errno.ENOSYS, rules)
    wanted = expected(rules[call], arguments) if call < len(rules) else ALLOW
    assert verdict(built, machine=7, call=call, arguments=arguments) == wanted
    assert verdict(built, machine=8, call=call, arguments=arguments) == KILL
    assert verdict(built, machine=7, call=call + 0x40000000, arguments=arguments) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_every_call_has_one_rule_and_the_usual_ones_none(machine: str) -> None:
    built, audit = program(machine), MACHINES[machine].audit_arch
    calls = [rule.call for rule in rules(machine)]
    assert len(calls) == len(set(calls)) and min(calls) >= 0
    number = {name: getattr(numbers, machine) for name, numbers in SYSCALLS.items()}

    def says(name: str, *arguments: int) -> int:
        return verdict(built, machine=audit, call=number[name], arguments=(*arguments, *[0] * (6 - len(arguments))))

    for name in ("ptrace", "process_vm_readv", "keyctl", "bpf", "mount", "setns", "open_by_handle_at", "userfaultfd"):
        assert says(name) == ERRNO | errno.EPERM, name
    assert says("clone3") == says("io_uring_setup") == ERRNO | errno.ENOSYS
    threads, user_namespace = 0x3D0F00, 0x10000000
    assert says("clone", threads) == says("unshare", 0x400) == ALLOW
    assert says("clone", threads | user_namespace) == says("unshare", user_namespace) == ERRNO | errno.EPERM
    assert says("ioctl", 1, 0x5401) == ALLOW
    # The kernel looks at 32 bits of it: the upper ones must not hide it.
    assert says("ioctl", 1, 0x5412) == says("ioctl", 1, 0xFF00005412) == ERRNO | errno.EPERM
    assert says("socket", 1) == says("socket", 2) == says("socket", 10) == says("socket", 16) == ALLOW
    assert says("socket", 40) == says("socket", 38) == ERRNO | errno.EAFNOSUPPORT
    assert says("personality", 0xFFFFFFFF) == ALLOW
    assert says("personality", 0x0400000) == ERRNO | errno.EPERM
    listed = set(number.values())
    quiet = [verdict(built, machine=audit, call=call, arguments=(2**64 - 1,) * 6) for call in range(460)]
    assert [call for call in range(460) if quiet[call] != ALLOW and call not in listed] == []


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_numbers_are_the_kernels(machine: str, header: str) -> None:
    path = Path(header)
    if not path.exists():
        pytest.skip(f"no kernel headers here ({header}, Debian's linux-libc-dev)")
    known = dict(re.findall(r"__NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
    for name, numbers in SYSCALLS.items():
        number = getattr(numbers, machine)
        # The x86 header of a later kernel lacks what is gone from it; nothing else may be missing.
        assert number == int(known.get(name, -1)) or (name not in known and machine == "x86_64"), name


def test_where_there_is_no_filter_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own_program.cache_clear()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    try:
        assert (own_program(), own_program()) == (b"", b"")
    finally:
        own_program.cache_clear()
    assert caplog.text.count("no seccomp filter is known for riscv64") == 1


ATTEMPTS = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
numbers = {name: getattr(pair, os.uname().machine) for name, pair in NUMBERS.items()}

def error(name, *arguments):
    ctypes.set_errno(0)
    libc.syscall(numbers[name], *arguments)
    return errno.errorcode.get(ctypes.get_errno(), "ok")

print(error("ptrace", 0), error("keyctl", 0), error("unshare", 0x10000000), error("clone3", 0), error("io_uring_setup"))
print(error("socket", 40, 1, 0), error("socket", 1, 1, 0), error("personality", 0xFFFFFFFF))
print(open("/proc/self/status").read().partition("Seccomp:")[2].split()[0])
"""


async def test_the_kernel_denies_inside(sandbox: Sandbox) -> None:
    if not own_program():
        pytest.skip("no seccomp filter for this machine")
    prelude = "from collections import namedtuple\nPair = namedtuple('Pair', 'x86_64 aarch64')\n"
    prelude += (
        f"NUMBERS = {{name: Pair(*pair) for name, pair in { ({n: tuple(p) for n, p in SYSCALLS.items()})!r}.items()}}"
    )
    result = await sandbox.exec(python(prelude + ATTEMPTS), timeout_s=20)
    assert result.stdout.decode().splitlines() == ["EPERM EPERM EPERM ENOSYS ENOSYS", "EAFNOSUPPORT ok ok", "2"]
