"""Threads for sessions whose calls block: bounded in number, one at a time for each session, never waited for forever.

The event loop does not stall while a session's call runs. A call that hangs cannot be ended from outside; its thread
is left to itself, counts against the bound until it returns, and does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

from longrein.errors import InfrastructureError
from longrein.sandboxes.own_thread import Job, forget

T = TypeVar("T")


class CallTimeoutError(InfrastructureError, TimeoutError):
    """A session's call did not return in time."""


class SessionThread:
    """Runs the calls of one session, one after the other, in one thread."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._open_jobs = 0
        self._lock = threading.Lock()
        self._on_end: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a call is under way, be it one that nobody waits for any more."""
        return self._open_jobs > 0

    async def call(
        self, what: str, work: Callable[[], T], timeout_s: float | None, late: Callable[[T], Any] = forget
    ) -> T:
        """What ``work`` returns or raises in the thread.

        Args:
            what: names the call in the error.
            work: runs in the thread.
            timeout_s: ``None`` waits for as long as it takes.
            late: gets the result, in the thread, when nobody waits any more (time ran out, or we were cancelled).

        Raises:
            CallTimeoutError: it did not return in time.
        """
        future = self.submit(work, late)
        patience = asyncio.timeout(timeout_s)
        try:
            async with patience:
                return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._abandon(future, late)
            raise
        except TimeoutError as error:
            if not patience.expired():
                raise
            self._abandon(future, late)
            raise too_late(what, timeout_s) from error

    def submit(self, work: Callable[[], T], late: Callable[[T], Any] = forget) -> Future[T]:
        """Have ``work`` run when its turn comes. A future that is cancelled before the end leaves it to ``late``."""
        job = Job(work, late, self._one_over)
        with self._lock:
            self._open_jobs += 1
        self._jobs.put(job)
        return job.future

    def end(self, on_end: Callable[[], None]) -> None:
        """End once what is under way has returned, then call ``on_end`` in the thread."""
        self._on_end = on_end
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout_s)

    def _abandon(self, future: Future[T], late: Callable[[T], Any]) -> None:
        """The result may have come at the very moment in which we stopped to wait."""
        if not future.cancel() and future.exception() is None:
            self.submit(lambda: late(future.result()))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
        self._on_end()

    def _one_over(self) -> None:
        with self._lock:
            self._open_jobs -= 1


class SessionThreads:
    """At most ``limit`` threads at once; whoever wants another waits. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._hung = 0
        self._changed = asyncio.Event()

    @property
    def used(self) -> int:
        """Threads that there are."""
        return self._used

    @asynccontextmanager
    async def thread(self, name: str) -> AsyncGenerator[SessionThread, None]:
        """A thread of one's own, which ends with the block, or as soon as a call that hangs in it returns.

        Raises:
            InfrastructureError: every thread is taken by a call that hangs.
        """
        await self._wait_for_room()
        self._used += 1
        thread = SessionThread(name)
        try:
            yield thread
        finally:
            loop = asyncio.get_running_loop()
            hung = thread.busy
            self._hung += hung
            self._changed.set()
            thread.end(lambda: _tell(loop, lambda: self._gone(hung)))

    async def _wait_for_room(self) -> None:
        while self._used >= self._limit:
            if self._hung >= self._limit:
                raise InfrastructureError(
                    f"calls of {self._hung} sessions hang and hold all {self._limit} threads; mend the environment "
                    "that they call, or give its client a timeout"
                )
            self._changed.clear()
            await self._changed.wait()

    def _gone(self, was_hung: bool) -> None:
        self._used -= 1
        self._hung -= was_hung
        self._changed.set()


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        # The loop is closed: nobody is left who would count threads.
        return


def too_late(what: str, timeout_s: float | None) -> CallTimeoutError:
    """The error for a call that nobody waits for any more."""
    return CallTimeoutError(f"{what} did not return within {timeout_s:g} s; its thread is left to itself")
