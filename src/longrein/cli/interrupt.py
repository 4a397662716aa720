"""Ctrl-C that works while the main thread is inside a long native call.

Python raises ``KeyboardInterrupt`` only between bytecodes; one backward pass of a large micro-batch is a single call
of many seconds. The interpreter's C-level handler, however, writes to the wakeup descriptor at once, and a thread
that reads it can end the process. Engine and rollout worker notice that their owner is gone and end by themselves.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

GRACE_S = 3.0
"""For the ordinary way out: ``KeyboardInterrupt``, ``finally`` blocks, interpreter exit."""
EXIT_CODE = 130
MESSAGE = "longrein: interrupted; finished rollouts and metrics are in the run directory"


@contextmanager
def bounded_interrupt() -> Generator[None, None, None]:
    """Within this context, and until the process ends, Ctrl-C takes at most ``GRACE_S`` seconds."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, writer), name="longrein-interrupt", daemon=True).start()
    yield


def _watch(reader: socket.socket, writer: socket.socket) -> None:
    """Runs until the process ends; holds ``writer`` so that its descriptor stays valid."""
    while signal.SIGINT not in reader.recv(64):
        pass
    time.sleep(GRACE_S)
    print(MESSAGE, file=sys.stderr, flush=True)
    writer.close()
    os._exit(EXIT_CODE)
