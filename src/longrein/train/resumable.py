"""``transformers.Trainer`` whose checkpoints are whole or not there, and are checked before anything is loaded."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, cast

from torch import nn
from transformers import Trainer, TrainerState
from transformers.trainer_utils import TrainOutput, rotate_checkpoints

from longrein.errors import CheckpointError
from longrein.train.adapter_weights import adapter_settings, base_digest
from longrein.train.adapters import is_adapted
from longrein.train.checkpoint import (
    Checkpoint,
    Identity,
    check_same,
    last_checkpoint,
    read_checkpoint,
    undo_after,
    write_note,
)
from longrein.train.ranks import lost_rank, ranks_here, together
from longrein.train.whole_folder import written_whole

STATE = "trainer_state.json"
CONTROLS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")


class ResumableTrainer(Trainer):
    """Writes weights, optimizer, scheduler, random states, and its own note; goes on from them.

    What of it is the library's: the files, when they are written (``save_strategy``, ``save_steps``), how many are
    kept (``save_total_limit``), the hub. What is ours: they are written aside and renamed, so that a process killed at
    any moment leaves the last one usable, and :mod:`longrein.train.checkpoint`.
    """

    _saving_in: Path | None = None
    _saved_for_hub: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ranks = ranks_here()
        """The processes that train this model together."""
        if is_adapted(cast(nn.Module, self.model)):
            base_digest(cast(nn.Module, self.model))  # while it is whole

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train to the end, from the start or from a checkpoint.

        A run that starts, or goes on from step N, renames later checkpoints of ``output_dir`` to
        ``_undone-checkpoint-...``.

        Raises:
            CheckpointError: no checkpoint, one that is not whole, or one of another model or run.
        """
        checkpoint = self._agreed(resume_from_checkpoint)
        if self.ranks.index == 0:
            undo_after(self._output_dir(), checkpoint.note.step if checkpoint else 0)
        with lost_rank():
            if checkpoint is None:
                return super().train(None, *args, **kwargs)
            self.go_on_from(checkpoint)
            if checkpoint.note.step >= self._last_step():
                return self._load_finished(checkpoint)
            return super().train(str(checkpoint.folder), *args, **kwargs)

    def identity(self) -> Identity:
        """What a checkpoint of this trainer fits."""
        model = cast(nn.Module, self.accelerator.unwrap_model(self.model))
        return Identity(
            tensors={name: tuple(parameter.shape) for name, parameter in model.named_parameters()},
            tokenizer=_tokenizer_digest(self.processing_class),
            settings={"sharded": self.is_fsdp_enabled, **(adapter_settings(model) if is_adapted(model) else {})},
        )

    def taken(self) -> tuple[str, ...]:
        """Ids of the groups that the steps so far have used up."""
        return ()

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Called once the checkpoint is known to fit, before its weights are loaded."""

    def _find(self, resume_from_checkpoint: str | bool | None) -> Checkpoint | None:
        if resume_from_checkpoint is True:
            found = last_checkpoint(self._output_dir())
            if found is None:
                raise CheckpointError(f"{self._output_dir()} holds no whole checkpoint; train without resuming")
            return found
        return read_checkpoint(Path(resume_from_checkpoint)) if resume_from_checkpoint else None

    def _agreed(self, resume_from_checkpoint: str | bool | None) -> Checkpoint | None:
        """What every rank goes on from: they must see the same."""
        with together(self.ranks):
            checkpoint = self._find(resume_from_checkpoint)
            if checkpoint is not None:
                check_same(checkpoint, self.identity())
        seen = self.ranks.gathered(checkpoint.note if checkpoint else None)
        if any(note != seen[0] for note in seen):
            steps = [note.step if note else "none" for note in seen]
            raise CheckpointError(
                f"ranks would go on from different checkpoints of {self._output_dir()} (steps by rank: {steps}); "
                "put output_dir on a file system that all of them see, and resume all or none"
            )
        return checkpoint

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        # Callbacks may be on one rank only, or look at the clock.
        self._agree_on_control()
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._agree_on_control()

    def _agree_on_control(self) -> None:
        """What a callback asks for on one rank, all do."""
        asked = self.ranks.gathered([name for name in CONTROLS if getattr(self.control, name)])
        for name in {name for names in asked for name in names}:
            setattr(self.control, name, True)

    def _load_finished(self, checkpoint: Checkpoint) -> TrainOutput:
        """The library would take one step more."""
        self._load_from_checkpoint(str(checkpoint.folder))
        self.state = TrainerState.load_from_json(str(checkpoint.folder / STATE))
        return TrainOutput(self.state.global_step, 0.0, {})

    def _last_step(self) -> int:
        if self.args.max_steps > 0:
            return self.args.max_steps
        return math.ceil(self.args.num_train_epochs * len(self.get_train_dataloader()))

    def _output_dir(self) -> Path:
        return Path(str(self.args.output_dir))

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._saving_in) if self._saving_in else super()._get_output_dir(trial)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Names and shapes were compared; the library would warn of tied weights, which are saved once.
        return

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = self._output_dir() / f"checkpoint-{self.state.global_step}"
        self._saved_for_hub = False
        identity = self.identity()
        if self.ranks.index == 0:
            with written_whole(folder) as part:
                self._save_part(self.ranks.from_first(part), model, trial)
                write_note(part, step=self.state.global_step, taken=self.taken(), identity=identity)
            if self._saved_for_hub:
                super()._push_from_checkpoint(str(folder))
            rotate_checkpoints(output_dir=str(self._output_dir()), save_total_limit=self.args.save_total_limit)
        else:
            self._save_part(self.ranks.from_first(folder), model, trial)
        self.ranks.gathered(None)  # it is there, whole

    def _save_part(self, part: Path, model: nn.Module, trial: Any) -> None:
        """What this rank has of a checkpoint; on return every rank has written."""
        self._saving_in = part.parent
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._saving_in = None
        self.ranks.gathered(None)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        # The library calls this while the folder is still unfinished; it uploads in the background.
        self._saved_for_hub = True


def _tokenizer_digest(tokenizer: Any) -> str:
    told = json.dumps([sorted(tokenizer.get_vocab().items()), tokenizer.chat_template], ensure_ascii=False)
    return hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()
