"""When nothing more will come of a session, whether its agent knows or not."""

from __future__ import annotations

import asyncio

from longrein.types import Failure

FINAL_ANSWERS = 16
"""An agent that still asks after so many answers saying that its session is over does not listen."""
REFUSALS = 64
"""Nor does one that is refused so often in a row, with nothing sampled between."""


class Ending:
    """Set once, by a fault of ours or by an agent that does not listen; whoever owns the agent may wait for it."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        """The first one: the rollout is unscorable."""
        self.unheard = False
        """The agent was refused until nobody expects anything more of it."""
        self._final_answers = 0
        self._refusals = 0
        self._over = asyncio.Event()

    def fail(self, failure: Failure) -> None:
        """The session's answers are lost for a fault of ours."""
        self.failure = self.failure or failure
        self.end()

    def end(self) -> None:
        """Nothing more will come of this session."""
        self._over.set()

    def count_final_answer(self) -> None:
        """The agent was told that its session is over."""
        self._final_answers += 1
        if self._final_answers >= FINAL_ANSWERS:
            self.end()

    def count_refusal(self) -> None:
        """The agent was told that it cannot have what it asked for."""
        self._refusals += 1
        if self._refusals >= REFUSALS:
            self.unheard = True
            self.end()

    def count_sampled(self) -> None:
        """The agent has something to work with."""
        self._refusals = 0

    async def wait(self) -> None:
        """Return when the session is over."""
        await self._over.wait()
