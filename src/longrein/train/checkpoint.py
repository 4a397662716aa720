"""What a checkpoint says of itself, beside what the library keeps in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec

from longrein.errors import CheckpointError

NOTE = "longrein.json"
_NAME = re.compile(r"checkpoint-(\d+)")
UNDONE = "_undone-"
"""The library uploads nothing to the hub that begins with _."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What must be the same in the run that goes on from a checkpoint."""

    tensors: dict[str, tuple[int, ...]]
    """Name -> shape of all weights."""
    tokenizer: str
    """A digest of vocabulary and chat template."""
    settings: dict[str, Any] = {}
    """What finished rollouts depend on."""


class CheckpointNote(msgspec.Struct, frozen=True, kw_only=True):
    """``longrein.json``: written last, so that a checkpoint with a note that holds is a whole one."""

    form: Literal[1] = 1
    step: int
    """Optimizer steps taken, which is the policy version."""
    taken: tuple[str, ...] = ()
    """Ids of the groups that these steps took, trained on or dropped, in their order. No other group is used up."""
    identity: Identity
    files: dict[str, int]
    """Size in bytes of every other file."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint on disk, found whole."""

    folder: Path
    note: CheckpointNote


def write_note(folder: Path, *, step: int, taken: tuple[str, ...], identity: Identity) -> None:
    """Complete a checkpoint."""
    note = CheckpointNote(step=step, taken=taken, identity=identity, files=_sizes(folder))
    (folder / NOTE).write_bytes(msgspec.json.encode(note))


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint's note and see that nothing is missing.

    Raises:
        CheckpointError: no such folder, one that is not whole, or one that was undone.
    """
    if folder.name.startswith(UNDONE):
        raise CheckpointError(
            f"{folder} was undone when its run was resumed from an earlier step, and its rollouts are no longer with "
            "the run; start a new run with it as model"
        )
    try:
        note = msgspec.json.decode((folder / NOTE).read_bytes(), type=CheckpointNote)
    except OSError as error:
        raise CheckpointError(
            f"{folder} is not a checkpoint of ours: {error}. Give a checkpoint-N folder of a run, or True for the last."
        ) from error
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{folder / NOTE} cannot be read: {error}. Resume from another checkpoint.") from error
    sizes = _sizes(folder)
    wrong = sorted(name for name, size in note.files.items() if sizes.get(name) != size)
    if wrong:
        raise CheckpointError(
            f"{folder} is not whole: {wrong[0]} has {sizes.get(wrong[0], 0)} bytes instead of {note.files[wrong[0]]}; "
            "resume from another checkpoint"
        )
    return Checkpoint(folder=folder, note=note)


def checkpoints(output_dir: Path) -> list[Path]:
    """The ``checkpoint-N`` folders of a run, by step, whole or not."""
    found = [path for path in output_dir.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_step)


def last_checkpoint(output_dir: Path) -> Checkpoint | None:
    """The last whole checkpoint of a run, or ``None``. Older ones may be half deleted."""
    for folder in reversed(checkpoints(output_dir)):
        try:
            return read_checkpoint(folder)
        except CheckpointError:
            continue
    return None


def undo_after(output_dir: Path, step: int) -> None:
    """Rename checkpoints beyond ``step`` to ``_undone-checkpoint-N``: training goes another way from there."""
    for folder in checkpoints(output_dir):
        if _step(folder) > step:
            names = (f"{UNDONE}{folder.name}{'' if n == 0 else f'.{n}'}" for n in count())
            folder.rename(next(path for name in names if not (path := output_dir / name).exists()))


def check_same(checkpoint: Checkpoint, identity: Identity) -> None:
    """See that a checkpoint is of the model, tokenizer and settings that go on from it.

    Raises:
        CheckpointError: names everything that differs.
    """
    theirs = checkpoint.note.identity
    problems = [*_tensor_problems(theirs.tensors, identity.tensors)]
    if theirs.tokenizer != identity.tokenizer:
        problems.append("the tokenizer or its chat template is another one")
    problems += [
        f"{name} was {theirs.settings[name]!r} and is {identity.settings.get(name)!r}"
        for name in sorted(theirs.settings)
        if theirs.settings[name] != identity.settings.get(name)
    ]
    if problems:
        raise CheckpointError(
            f"{checkpoint.folder} is of another run: {'; '.join(problems)}. Resume with what it was made with, or "
            "start a new run with it as model."
        )


def _tensor_problems(theirs: Mapping[str, tuple[int, ...]], ours: Mapping[str, tuple[int, ...]]) -> list[str]:
    other = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
    if not other:
        return []
    name = other[0]
    more = f" and {len(other) - 1} more tensors" if len(other) > 1 else ""
    return [f"the model's {name} has shape {ours.get(name, 'none')}, the checkpoint's {theirs.get(name, 'none')}{more}"]


def _sizes(folder: Path) -> dict[str, int]:
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / NOTE]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(files)}


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("checkpoint-"))
