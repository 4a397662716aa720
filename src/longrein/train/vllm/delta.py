"""Only the weights that changed, by a folder that trainer and servers both see."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, equal

from longrein.engines.vllm.control import ServerControl
from longrein.engines.vllm.updates import WeightUpdates
from longrein.train.vllm.folder import WeightFolder, drop_others, part_of, write_tensors
from longrein.train.vllm.shapes import Shapes, as_tensors, check_served, shapes_of
from longrein.train.vllm.tied import Tied, under_every_name

_LAYER = re.compile(r"^(.*?\.\d+\.[^.]+)\.")


class ChangedFolder:
    """A folder of the tensors that differ from the version before; :class:`~longrein.engines.vllm.updates.Weights`.

    Args:
        changed: the folder, if there are such tensors: at most one.
        whole: where all are written when a server needs them.
        tensors: all of them.
    """

    def __init__(self, changed: Sequence[Path], whole: Path, tensors: Mapping[str, Tensor]) -> None:
        self._changed = tuple(changed)
        self._whole = whole
        self._tensors = tensors
        self._written = False
        self._lock = threading.Lock()

    def refuse_gone(self, server: ServerControl) -> None:
        """They stay in memory."""

    def change(self, server: ServerControl) -> None:
        """Nothing is loaded where nothing changed."""
        for folder in self._changed:
            server.reload(str(folder))

    def whole(self, server: ServerControl) -> None:
        """All of them, written when first asked for."""
        with self._lock:
            # What lies there may be of an earlier run, or of a publication before under the same version.
            if not self._written:
                write_tensors(self._tensors, self._whole)
                self._written = True
        WeightFolder(self._whole).whole(server)


class DeltaWeights:
    """A :class:`~longrein.engines.base.WeightReceiver` for training that leaves most weights alone.

    Keeps a copy of the published weights in memory to compare with. Tensors that a server joins in one (queries, keys
    and values; gate and up; experts) go together: vLLM takes a joined weight whole or loses the part that did not come.
    So if one tensor of an attention or of an MLP changed, all of it is written.

    Args:
        updates: the servers.
        folder: where versions are written; the servers must see it under the same path.
        tied: of the model in training.
    """

    def __init__(self, updates: WeightUpdates, folder: Path, tied: Tied) -> None:
        self._updates = updates
        self._folder = folder
        self._tied = tied
        self._published: dict[str, Tensor] = {}
        self._known: Shapes = {}

    def update(self, tensors: object, policy_version: int) -> None:
        """See :class:`~longrein.engines.base.WeightReceiver`. Names and shapes are those of the served model."""
        self._updates.refuse_old(policy_version)
        named = as_tensors(tensors)
        check_served(named, self._known, self._updates.servers)
        self._known = shapes_of(named)
        now = {name: tensor.detach().cpu() for name, tensor in named.items()}
        changed = _changed(now, self._published)
        # Until all servers have them nothing is known of what they hold.
        before, self._published = self._published, {}
        # Never in place: servers may yet need the version before. What did not change is shared with it.
        kept = {name: tensor.clone() if name in changed else before[name] for name, tensor in now.items()}
        folder, whole = self._folder / f"d{policy_version}", self._folder / f"v{policy_version}"
        written = [write_tensors(under_every_name(changed, self._tied), folder)] if changed else []
        self._updates.publish(ChangedFolder(written, whole, under_every_name(kept, self._tied)), policy_version)
        self._published = kept
        # Whoever looks after the servers may be writing all of them just now.
        drop_others(self._folder, whole, part_of(whole))

    def close(self) -> None:
        """Look after the servers no more, and remove what was written."""
        self._updates.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def group_of(name: str) -> str:
    """What a tensor goes together with: the attention or MLP of its layer, or nothing but itself."""
    layer = _LAYER.match(name)
    return layer.group(1) if layer else name


def _changed(now: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    groups = {group_of(name) for name, tensor in now.items() if name not in before or not equal(tensor, before[name])}
    return {name: tensor for name, tensor in now.items() if group_of(name) in groups}
