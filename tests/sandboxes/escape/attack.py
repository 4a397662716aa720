"""How attacks are run. Each is a Python program that prints ``won`` or ``lost``; it is made twice: as a control in the
plain-subprocess fallback, where it has to win, or it would prove nothing, and in bubblewrap, where it must not."""

from __future__ import annotations

import os
import signal
import textwrap
from contextlib import suppress
from pathlib import Path

from longrein.sandboxes.base import ExecResult, SandboxBackend, SandboxLimits, SandboxSpec
from tests.sandboxes.inside import PYTHON_MOUNTS, python

_FRAME = """
import errno, glob, os, signal, socket, subprocess, sys, textwrap, time

def attack():
{body}

try:
    won = attack()
except OSError as error:
    won = False
    print(error, file=sys.stderr)
print("won" if won else "lost")
"""

UNSEEN = """
def unseen(work):
    '''Run work in a process of its own that sheds all by which it could be known; it lives for a minute at most.'''
    code = "import os, sys, time, glob\\n" + textwrap.dedent(work)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.chdir("/")
            os.execve(sys.executable, [sys.executable, "-c", code], {"PATH": "/usr/bin:/bin"})
        os._exit(0)
    os.wait()
"""
"""The fallback knows its processes by a variable in their environment: whoever drops it is out of reach."""


def program(body: str) -> tuple[str, ...]:
    return python(UNSEEN + _FRAME.format(body=textwrap.indent(textwrap.dedent(body), "    ")))


async def attempt(
    backend: SandboxBackend,
    body: str,
    *,
    env: dict[str, str] | None = None,
    limits: SandboxLimits | None = None,
    timeout_s: float = 30.0,
    ports: tuple[int, ...] = (),
) -> ExecResult:
    """One attack in a sandbox of its own, which is closed on return."""
    spec = SandboxSpec(readonly_mounts=PYTHON_MOUNTS, loopback_ports=ports, limits=limits or SandboxLimits())
    sandbox = await backend.create(spec)
    try:
        return await sandbox.exec(program(body), env=env, timeout_s=timeout_s)
    finally:
        await sandbox.close()


async def wins(backend: SandboxBackend, body: str, *, env: dict[str, str] | None = None) -> bool:
    """Whether the attack won. That it came to an end at all is asserted."""
    result = await attempt(backend, body, env=env)
    assert result.stdout in {b"won\n", b"lost\n"}, result
    return result.stdout == b"won\n"


def stop(pid_file: Path) -> bool:
    """Kill what a control left running; whether it still ran."""
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        return True
    return False
