"""Runs a server's command as a process group that never outlives whoever started us: ``python leash.py COMMAND ...``.

Our stdin is a pipe that its owner holds. When it ends, because the owner let go or was killed, the whole group is
killed; so it is when the command's own process ends, since vLLM's engine processes linger when their server was killed.

There are two of us, since one that is killed by SIGKILL can do nothing any more: the leash, whom the owner knows, and a
guard, which leads the command's group. Each kills the group when the other one is gone. A signal at the parent's death
(``PR_SET_PDEATHSIG``) would end the command's own process alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from typing import NoReturn

LOOK_EVERY_S = 0.2


def main(command: list[str]) -> int:
    """Exit with the command's code, or 0 when the owner let go."""
    # Ctrl-C, a closed terminal, a signal to the whole group: the owner's business, whose end of the pipe tells. By a
    # handler, since the command would inherit it if they were ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    # Nobody writes to it: it ends when we do. The command does not inherit it, and the guard closes our end.
    for_guard, ours = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.close(ours)
        _guard(command, for_guard)
    os.close(for_guard)
    status = 0
    try:
        while not _ended(guard):
            if select.select([sys.stdin], [], [], LOOK_EVERY_S)[0]:
                return 0
    finally:
        # The guard first, which may not lead a group yet: it must not begin one, and a command in it, after this. Then
        # what is left of the group of a guard that is gone; reaped only after that, its number is still its own.
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(guard, signal.SIGKILL)
        status = os.waitpid(guard, 0)[1]
    return os.waitstatus_to_exitcode(status)


def _guard(command: list[str], leash: int) -> NoReturn:
    """Lead a group of our own with the command in it, until it or the leash ends."""
    os.setsid()
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        os.write(sys.stderr.fileno(), f"{command[0]} cannot be started: {error}\n".encode())
        os._exit(127)
    while server.poll() is None:
        if select.select([leash], [], [], LOOK_EVERY_S)[0]:
            os.killpg(0, signal.SIGKILL)
    # A code below 0 is a signal's; a shell says 128 + its number.
    os._exit(server.returncode if server.returncode >= 0 else 128 - server.returncode)


def _ended(child: int) -> bool:
    """Whether a child ended; it stays to be reaped."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # The guard itself may have been killed.
    sys.exit(code if code >= 0 else 128 - code)
