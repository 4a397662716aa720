"""A driver that does not make again what is there."""

from __future__ import annotations

from collections.abc import Mapping

from longrein.rollout.attempt import Attempt, Driver
from longrein.types import Rollout


class FinishedFirst:
    """Gives finished rollouts by their ids, and has ``driver`` make the others; a :class:`Driver`."""

    def __init__(self, driver: Driver, finished: Mapping[str, Rollout]) -> None:
        self._driver = driver
        self._finished = finished

    async def run(self, attempt: Attempt) -> Rollout:
        """The finished rollout of that id, or a new one."""
        return self._finished.get(attempt.rollout_id) or await self._driver.run(attempt)
