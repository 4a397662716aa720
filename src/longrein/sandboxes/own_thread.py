"""Calls that block for as long as somebody else likes: each in a thread of its own.

The event loop's own threads are few and shared by everything; one call that hangs would hold one of them for ever, and
a handful would stop the process. A call cannot be ended from outside: its thread is left to itself, and does not keep
the process from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from longrein.errors import InfrastructureError

T = TypeVar("T")


def forget(result: Any) -> None:
    """Nothing to undo."""


def nothing() -> None:
    """Nobody to tell."""


class Job(Generic[T]):
    """One call. Its waiter may leave: what comes afterwards goes to ``late``, still in the thread.

    ``over`` is called in the thread when all that is done, and before whoever waits knows: what that does next may
    depend on it.
    """

    def __init__(self, work: Callable[[], T], late: Callable[[T], Any], over: Callable[[], Any] = nothing) -> None:
        self.future: Future[T] = Future()
        self._work = work
        self._late = late
        self._over = over

    def run(self) -> None:
        """Make the call, in this thread."""
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the result gets it
            # A pending future can be cancelled until this very moment, and then nobody waits.
            awaited = self.future.set_running_or_notify_cancel()
            self._over()
            if awaited:
                self.future.set_exception(_as_failure(error))
            return
        if self.future.set_running_or_notify_cancel():
            self._over()
            self.future.set_result(result)
            return
        try:
            self._late(result)
        finally:
            self._over()


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


def _as_failure(error: BaseException) -> BaseException:
    """What a call raised, as a future of asyncio's can carry it.

    A cancellation within the call would look like one of whoever waits, and ``StopIteration`` would never reach it.
    """
    if isinstance(error, asyncio.CancelledError | CancelledError | StopIteration):
        failure = InfrastructureError(f"a call ended by {type(error).__name__} {error}, which nobody here asked for")
        failure.__cause__ = error
        return failure
    return error


def _start(target: Callable[[], Any]) -> None:
    threading.Thread(target=target, name="longrein-call", daemon=True).start()
