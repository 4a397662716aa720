"""Whole weights by a folder that trainer and servers both see."""

# safetensors is partly untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from longrein.engines.vllm.control import ServerControl
from longrein.engines.vllm.updates import WeightUpdates
from longrein.errors import EngineError
from longrein.train.vllm.shapes import Shapes, as_tensors, check_served, shapes_of
from longrein.train.vllm.tied import Tied, under_every_name

TENSORS = "model.safetensors"


class WeightFolder:
    """A folder of all tensors; :class:`~longrein.engines.vllm.updates.Weights`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def refuse_gone(self, server: ServerControl) -> None:
        """They stay on disk."""

    def change(self, server: ServerControl) -> None:
        """All of them, as always."""
        self.whole(server)

    def whole(self, server: ServerControl) -> None:
        """An adapter that an earlier run left is gone too, or it would be sampled with."""
        server.unload_adapter()
        server.reload(str(self.folder))


class FolderWeights:
    """A :class:`~longrein.engines.base.WeightReceiver`: each version is a folder that the servers load.

    The folder of the present version stays on disk until the next one is served, for a server that is started again.

    Args:
        updates: the servers.
        folder: where versions are written; the servers must see it under the same path.
        tied: of the model in training.
    """

    def __init__(self, updates: WeightUpdates, folder: Path, tied: Tied) -> None:
        self._updates = updates
        self._folder = folder
        self._tied = tied
        self._known: Shapes = {}

    def update(self, tensors: object, policy_version: int) -> None:
        """See :class:`~longrein.engines.base.WeightReceiver`. Names and shapes are those of the served model."""
        self._updates.refuse_old(policy_version)
        named = as_tensors(tensors)
        check_served(named, self._known, self._updates.servers)
        self._known = shapes_of(named)
        written = write_tensors(under_every_name(named, self._tied), self._folder / f"v{policy_version}")
        self._updates.publish(WeightFolder(written), policy_version)
        drop_others(self._folder, written, *self._in_use())

    def _in_use(self) -> tuple[Path, ...]:
        """What servers may still read, besides the present version."""
        return ()

    def close(self) -> None:
        """Look after the servers no more, and remove what was written."""
        self._updates.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def write_tensors(
    tensors: Mapping[str, Tensor], folder: Path, name: str = TENSORS, texts: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """A folder with these tensors, and texts beside them, that is there whole or not at all; replaces one of its name.

    Raises:
        EngineError: the disk is full, or not writable.
    """
    part = part_of(folder)
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        save_file(_apart(tensors), part / name)
        for beside, text in texts.items():
            (part / beside).write_text(text, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    except (OSError, SafetensorError) as error:
        raise EngineError(
            f"weights cannot be written to {folder}: {error}; give a folder on a disk with room"
        ) from error
    return folder


def part_of(folder: Path) -> Path:
    """Where a folder is until it is whole."""
    return folder.with_name(f".{folder.name}.part")


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, each with memory of its own, as a file has it."""
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        here = tensor.detach().contiguous().cpu()
        place = here.untyped_storage().data_ptr()
        apart[name] = here.clone() if place in taken else here
        taken.add(place)
    return apart


def drop_others(parent: Path, *kept: Path) -> None:
    """Remove the versions that no server needs any more; links stay."""
    for path in parent.iterdir():
        if path not in kept and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
