"""Calls that block for as long as somebody else likes: each in a thread of its own.

The event loop's own threads are few and shared by everything; one call that hangs would hold one of them for ever, and
a handful would stop the process. A call cannot be ended from outside: its thread is left to itself, and does not keep
the process from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def forget(result: Any) -> None:
    """Nothing to undo."""


class Job(Generic[T]):
    """One call. Its waiter may leave: what comes afterwards goes to ``late``, still in the thread."""

    def __init__(self, work: Callable[[], T], late: Callable[[T], Any]) -> None:
        self.future: Future[T] = Future()
        self._work = work
        self._late = late

    def run(self) -> None:
        """Make the call, in this thread."""
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the result gets it
            # A pending future can be cancelled until this very moment, and then nobody waits.
            if self.future.set_running_or_notify_cancel():
                self.future.set_exception(error)
            return
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(result)
        else:
            self._late(result)


async def in_own_thread(work: Callable[[], T], late: Callable[[T], Any] = forget) -> T:
    """What ``work`` returns or raises in a thread of its own.

    Args:
        work: runs in the thread.
        late: gets the result, in a thread, when we were cancelled meanwhile: to undo what nobody will use.
    """
    job = Job(work, late)
    _start(job.run)
    try:
        return await asyncio.wrap_future(job.future)
    except asyncio.CancelledError:
        # The result may have come at the very moment in which we stopped to wait.
        if not job.future.cancel() and job.future.exception() is None:
            _start(lambda: late(job.future.result()))
        raise


def _start(target: Callable[[], Any]) -> None:
    threading.Thread(target=target, name="longrein-call", daemon=True).start()
