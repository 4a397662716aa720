"""Threads for blocking sessions: bounded, in order, abandoned when they hang, gone at the end."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent import futures
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from longrein.errors import InfrastructureError
from longrein.sandboxes.own_thread import Job, in_own_thread
from longrein.sessions.heard import call_heard
from longrein.sessions.leash import Leash
from longrein.sessions.session_thread import CallTimeoutError, SessionThreads
from tests.gateway.rig import until

NAME = "longrein-test-thread"


def alive() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


async def test_calls_run_in_one_thread_in_order_and_errors_come_back() -> None:
    threads = SessionThreads(2)
    async with threads.thread(NAME) as thread:
        idents = {await thread.call("x", threading.get_ident, 60.0) for _ in range(3)}
        with pytest.raises(ZeroDivisionError):
            await thread.call("x", lambda: 1 / 0, 60.0)
        with pytest.raises(TimeoutError, match="its own"):
            await thread.call("x", lambda: (_ for _ in ()).throw(TimeoutError("its own")), 60.0)
    assert len(idents) == 1 and threading.get_ident() not in idents
    await until(lambda: alive() == 0 and threads.used == 0)


async def test_no_more_threads_than_the_limit_however_many_ask() -> None:
    threads = SessionThreads(3)
    most = 0

    async def one() -> None:
        nonlocal most
        async with threads.thread(NAME) as thread:
            most = max(most, threads.used)
            await thread.call("x", lambda: time.sleep(0.01), 60.0)

    await asyncio.gather(*[one() for _ in range(12)])
    assert most == 3
    await until(lambda: alive() == 0 and threads.used == 0)


async def test_call_that_hangs_is_abandoned_and_its_late_result_given_back() -> None:
    threads, release, late = SessionThreads(1), threading.Event(), []

    def slow() -> str:
        release.wait(60)
        return "a session"

    with pytest.raises(CallTimeoutError, match=r"create\(\) did not return within 0.05 s"):
        async with threads.thread(NAME) as thread:
            await thread.call("create()", slow, 0.05, late=late.append)
    # Nobody is let in while the only thread hangs, and nobody waits for it for ever.
    with pytest.raises(InfrastructureError, match="calls of 1 sessions hang and hold all 1 threads"):
        async with threads.thread(NAME):
            pass
    assert late == []
    release.set()
    await until(lambda: late == ["a session"] and threads.used == 0)
    async with threads.thread(NAME) as thread:
        assert await thread.call("x", lambda: 1, 60.0) == 1


async def test_late_result_after_cancellation_is_given_back_and_one_that_waits_is_woken() -> None:
    threads, release, late = SessionThreads(1), threading.Event(), []

    def slow() -> int:
        release.wait(60)
        return 7

    async def hang() -> None:
        async with threads.thread(NAME) as thread:
            await thread.call("x", slow, None, late=late.append)

    async def wait() -> None:
        async with threads.thread(NAME):
            pass

    hanging = asyncio.create_task(hang())
    await until(lambda: threads.used == 1)
    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0.02)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    with pytest.raises(InfrastructureError, match="hang and hold"):
        await waiting
    release.set()
    await until(lambda: late == [7])


async def test_thread_of_a_closed_loop_ends_without_a_word() -> None:
    release, names = threading.Event(), []

    async def hang() -> None:
        async with SessionThreads(1).thread(NAME) as thread:
            names.append(thread)
            with pytest.raises(CallTimeoutError):
                await thread.call("x", lambda: release.wait(60), 0.01)

    await asyncio.to_thread(asyncio.run, hang())
    release.set()
    await until(lambda: alive() == 0)


def test_leash_ends_the_wait_under_way_and_every_later_one() -> None:
    leash, never, came = Leash(), Future[int](), []

    def wait() -> None:
        with pytest.raises(CancelledError):
            leash.wait(never)
        came.append(1)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    leash.end()
    waiting.join(60)
    assert came == [1]
    later: Future[int] = Future()
    with pytest.raises(CancelledError):
        leash.wait(later)
    assert later.cancelled()


async def test_a_thread_whose_call_is_over_is_not_busy_for_whoever_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a session would be closed as one that hangs, in a foreign thread, and its thread counted as lost."""
    go_on, run = threading.Event(), Job.run

    def held(self: Job[Any]) -> None:
        run(self)
        assert go_on.wait(60)

    monkeypatch.setattr(Job, "run", held)
    threads = SessionThreads(1)
    try:
        for _ in range(2):
            async with threads.thread(NAME) as thread:
                assert await thread.call("x", lambda: 7, 60.0) == 7
                assert not thread.busy
                with pytest.raises(ZeroDivisionError):
                    go_on.set()
                    await thread.call("x", lambda: 1 / 0, 60.0)
                assert not thread.busy
    finally:
        go_on.set()


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [asyncio.CancelledError("x"), futures.CancelledError("x"), StopIteration("x")])
async def test_what_no_future_can_carry_is_a_failure_of_the_call(error: BaseException) -> None:
    """Taken for a cancellation of ours, it would end the worker; or whoever waits would never wake."""
    async with SessionThreads(1).thread(NAME) as thread, asyncio.timeout(60):
        for call in (in_own_thread(lambda: _raise(error)), thread.call("x", lambda: _raise(error), None)):
            with pytest.raises(InfrastructureError, match="nobody here asked for") as raised:
                await call
            assert raised.value.__cause__ is error


def test_a_tool_that_is_cancelled_has_failed() -> None:
    class Session:
        def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
            raise asyncio.CancelledError

    assert call_heard(Session(), "tool", {}).error == "the tool was cancelled"  # type: ignore[arg-type]
