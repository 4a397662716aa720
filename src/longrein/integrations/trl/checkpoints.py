"""TRL's checkpoints with what a resumed run must know of its rollouts: TRL keeps that for its own worker only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from transformers import TrainerCallback

from longrein.errors import CheckpointError
from longrein.integrations.trl.worker import HarnessRolloutWorker

NOTE = "longrein_rollouts.json"


class RolloutNote(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in a checkpoint."""

    model_version: int
    taken: tuple[str, ...]


class CheckpointRollouts(TrainerCallback):
    """Writes down in every checkpoint which groups are used up, for :meth:`restore`.

    A group counts as used up once TRL's loader has taken it, which is one micro-batch before it trains: a resumed run
    trains no group twice, and leaves out those that were taken ahead.

    Args:
        worker: the one that the trainer has.
    """

    def __init__(self, worker: HarnessRolloutWorker) -> None:
        self._worker = worker

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the library after it has written a checkpoint."""
        if not state.is_world_process_zero:
            return
        note = RolloutNote(model_version=self._worker.model_version, taken=tuple(self._worker.rollout_buffer.taken))
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / NOTE
        aside = path.with_suffix(".writing")
        aside.write_bytes(msgspec.json.encode(note))
        aside.replace(path)

    def restore(self, checkpoint: str | Path) -> int:
        """Have the worker go on from a checkpoint's rollouts; before training.

        Returns:
            The version to set as the trainer's ``model_version``: TRL restores it for its own worker only.

        Raises:
            CheckpointError: the folder has no such note, or a damaged one.
        """
        path = Path(checkpoint) / NOTE
        try:
            note = msgspec.json.decode(path.read_bytes(), type=RolloutNote)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{path} is not there; resume from a checkpoint that was made with this callback"
            ) from error
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"{path} is damaged ({error}); resume from an earlier checkpoint") from error
        self._worker.resume(note.taken, note.model_version)
        return note.model_version
