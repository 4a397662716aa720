"""A one-way pipe between two processes that cannot hang its reader when the writer dies.

``multiprocessing.Queue`` keeps the writing end open in the reader too, so a message that was cut off by the writer's
death never ends. Here each process holds one end, and the reader sees the end of the file.
"""

from __future__ import annotations

import pickle
import queue
import threading
from multiprocessing.connection import Connection
from typing import Any


class Outbox:
    """The writing end. A thread writes, so that a full pipe never blocks; it does not outlive the process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._write, name="longrein-outbox", daemon=True).start()

    def put(self, item: object) -> None:
        """Send ``item`` when there is room; returns at once. Any thread may call it."""
        self._waiting.put(pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL))

    def _write(self) -> None:
        try:
            while True:
                self._connection.send_bytes(self._waiting.get())
        except OSError:
            # The reader is gone: there is nobody left to tell.
            return


class Inbox:
    """The reading end. The reader's process must close its copy of the writing end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, timeout_s: float) -> Any:
        """The next item.

        Raises:
            queue.Empty: none came within ``timeout_s`` seconds.
            EOFError: the writer is gone, maybe in the middle of an item.
        """
        try:
            if not self._connection.poll(timeout_s):
                raise queue.Empty
            data = self._connection.recv_bytes()
        except OSError as error:
            raise EOFError(f"the writer ended in the middle of an item: {error}") from error
        return pickle.loads(data)

    def close(self) -> None:
        """Drop what is left."""
        self._connection.close()
