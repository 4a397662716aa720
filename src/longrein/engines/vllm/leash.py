"""Runs a server's command as a process group that never outlives whoever started us: ``python leash.py COMMAND ...``.

Our stdin is a pipe that its owner holds. When it ends, because the owner let go or was killed, the whole group is
killed; so it is when the command's own process ends, since vLLM's engine processes linger when their server was killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

LOOK_EVERY_S = 0.2


def main(command: list[str]) -> int:
    """Exit with the command's code, or 0 when the owner let go."""
    # Ctrl-C, a closed terminal, a signal to the whole group: the owner's business, whose end of the pipe tells. By a
    # handler, since the command would inherit it if they were ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while child.poll() is None:
            if select.select([sys.stdin], [], [], LOOK_EVERY_S)[0]:
                return 0
        return child.returncode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


if __name__ == "__main__":
    # A code below 0 is a signal's; a shell says 128 + its number.
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
