"""Agents retry for minutes: one whose session is over gets a moment to end of itself, and then is ended."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine
from typing import Any

from longrein.sessions.base import AgentExit, LoopOwningSession

GRACE_S = 2.0


async def run_until_over(session: LoopOwningSession, over: Coroutine[Any, Any, None]) -> AgentExit:
    """Run the agent to its end, or to ``GRACE_S`` after ``over`` returned. None of its processes is left on return.

    Args:
        session: its ``run()`` leaves no process when it is cancelled.
        over: returns when nothing more will come of the session.

    Raises:
        HarnessError: the agent could not be started.
        SandboxError: the sandbox died.
    """
    started_s = time.monotonic()
    running = asyncio.create_task(session.run())
    watching = asyncio.create_task(over)
    try:
        await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await asyncio.wait({running}, timeout=GRACE_S)
    finally:
        await _stop(running, watching)
    if not watching.cancelled():
        watching.result()
    if not running.cancelled():
        return running.result()
    return AgentExit(
        exit_code=-signal.SIGKILL,
        timed_out=False,
        output_tail="(ended by Longrein: its session was over)",
        duration_s=time.monotonic() - started_s,
    )


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(set(tasks))
    for task in tasks:
        if not task.cancelled():
            # Looked at here, because nobody may be left to look: asyncio complains about errors that nobody saw.
            task.exception()
