"""A judgement that was cut off makes only the rollouts that are missing."""

from __future__ import annotations

from longrein.rollout.driver import Attempt
from longrein.rollout.finished import FinishedFirst
from longrein.types import Rollout
from tests.traces import TASK, rollout


class Recording:
    """A driver that notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def run(self, attempt: Attempt) -> Rollout:
        self.asked.append(attempt.rollout_id)
        return rollout(attempt.rollout_id, [], reward=0.0)


async def test_what_is_finished_is_not_made_again() -> None:
    inner = Recording()
    driver = FinishedFirst(inner, {"base-00000-0": rollout("base-00000-0", [], reward=1.0)})
    ids = ["base-00000-0", "base-00000-1"]
    made = [await driver.run(Attempt(rollout_id=name, group_id="base-00000", task=TASK, seed=0)) for name in ids]
    assert [(found.rollout_id, found.score.reward) for found in made] == [(ids[0], 1.0), (ids[1], 0.0)]
    assert inner.asked == ids[1:]
