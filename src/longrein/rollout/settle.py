"""From a finished group to a scored one on disk, outside the event loop: judges may be slow, and so may disks."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from longrein.rollout.group import RewardSettings, score_group
from longrein.rollout.turns import TurnSettings, choose_turns
from longrein.store import RunStore
from longrein.types import RolloutGroup


class Settler:
    """Scores groups one at a time and writes each down once, scored if it can be.

    There is one thread, since users' reward functions need not be safe for several.
    """

    def __init__(self, store: RunStore, rewards: RewardSettings, turns: TurnSettings) -> None:
        self._store = store
        self._turns = turns
        self._rewards = rewards
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="longrein-scoring")
        self._unwritten: dict[str, RolloutGroup] = {}
        self._lock = threading.Lock()

    async def settle(self, group: RolloutGroup) -> RolloutGroup:
        """The group with rewards and advantages; it is on disk when this returns or raises.

        Raises:
            ConfigError: a reward function failed, or one that decides about turns.
        """
        self._unwritten[group.group_id] = group
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._settle, group)

    def close(self) -> None:
        """Write down what nobody will score any more. Does not wait for a reward function that still runs.

        What is being written is on disk on return: the folder may be another worker's then.
        """
        self._executor.shutdown(wait=False, cancel_futures=True)
        for group in list(self._unwritten.values()):
            self._write(group)
        with self._lock:
            # Nobody writes any more.
            pass

    def _settle(self, group: RolloutGroup) -> RolloutGroup:
        try:
            group = choose_turns(group, self._turns)
            group = score_group(group.group_id, group.task, group.rollouts, self._rewards)
        finally:
            self._write(group)
        return group

    def _write(self, group: RolloutGroup) -> None:
        with self._lock:
            if self._unwritten.pop(group.group_id, None) is not None:
                self._store.append(group)
