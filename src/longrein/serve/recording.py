"""What sessions said and were answered, into a run directory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from longrein.gateway.session import SessionRecord
from longrein.store import RunStore
from longrein.types import Rollout, RolloutGroup, Score, StatusName, Task

FOLDER = "served"
NOT_JUDGED = "served: nothing judged it"


class Recorder(Protocol):
    """Where finished sessions go."""

    async def keep(self, session_id: str, record: SessionRecord) -> str:
        """Keep one; returns where it is, empty for nowhere."""
        ...


class NoRecorder:
    """Nowhere."""

    async def keep(self, session_id: str, record: SessionRecord) -> str:
        """See :class:`Recorder`."""
        return ""


class FolderRecorder:
    """``<run directory>/served/rollouts/``, one file a session, in the form of every rollout."""

    def __init__(self, run_directory: Path) -> None:
        self._store = RunStore(run_directory / FOLDER)
        self._lock = asyncio.Lock()

    async def keep(self, session_id: str, record: SessionRecord) -> str:
        """See :class:`Recorder`. A session without calls leaves nothing."""
        if not record.trace.calls:
            return ""
        async with self._lock:
            return str(await asyncio.to_thread(self._store.append, _group(session_id, record)))


def _group(session_id: str, record: SessionRecord) -> RolloutGroup:
    rollout = Rollout(
        rollout_id=session_id,
        group_id=session_id,
        task_id=FOLDER,
        seed=0,
        status=_status(record),
        trace=record.trace,
        score=Score(reward=None, reason=NOT_JUDGED),
        failure=record.failure,
        metrics=record.counters,
    )
    return RolloutGroup(group_id=session_id, task=Task(task_id=FOLDER, prompt=""), rollouts=(rollout,))


def _status(record: SessionRecord) -> StatusName:
    if record.failure is not None:
        return "failed"
    return "truncated" if record.truncated else "completed"
