"""What sessions said and were answered, into a run directory."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from longrein.errors import ConfigError
from longrein.gateway.session import SessionRecord
from longrein.store import RunStore
from longrein.types import Rollout, RolloutGroup, Score, StatusName, Task

_LOG = logging.getLogger(__name__)
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
    """``<run directory>/served/rollouts/``, one file a session, in the form of every rollout.

    Raises:
        ConfigError: nothing can be written there.
    """

    def __init__(self, run_directory: Path) -> None:
        try:
            self._store = RunStore(run_directory / FOLDER)
        except OSError as error:
            raise ConfigError(
                f"sessions cannot be recorded in {run_directory}: {error}; give another --output-dir"
            ) from error
        self._lock = asyncio.Lock()

    async def keep(self, session_id: str, record: SessionRecord) -> str:
        """See :class:`Recorder`. A session without calls leaves nothing, and one that the disk does not take a word."""
        if not record.trace.calls:
            return ""
        async with self._lock:
            try:
                return str(await asyncio.to_thread(self._store.append, _group(session_id, record)))
            except OSError as error:
                # The others are served on.
                _LOG.error("session %s is not recorded: %s", session_id, error)
                return ""


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
