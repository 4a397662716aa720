"""New weights for the served model, out of a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from longrein.engines.base import WeightReceiver
from longrein.errors import CheckpointError, EngineError, EngineGoneError
from longrein.serve.refusals import bad_request
from longrein.serve.versions import VersionLabels

ReadWeights = Callable[[Path], object]
"""A model folder -> its tensors by name. Raises :class:`~longrein.errors.CheckpointError`."""


class ServedWeights:
    """Takes weights one after the other; the engine samples on meanwhile, with the old ones."""

    def __init__(self, receiver: WeightReceiver, read: ReadWeights, labels: VersionLabels) -> None:
        self._receiver = receiver
        self._read = read
        self._labels = labels
        self._lock = asyncio.Lock()

    async def reload(self, folder: Path) -> None:
        """Have the engine sample with a folder's weights.

        Raises:
            GatewayRequestError: 400, no such folder, a damaged one, or weights of another model. The old ones stay.
            EngineGoneError: no engine could take any.
        """
        if not await asyncio.to_thread(_is_folder, folder):
            raise bad_request(f"weights_path {folder} is no folder on this machine", "weights_path")
        async with self._lock:
            try:
                tensors = await asyncio.to_thread(self._read, folder)
                await asyncio.to_thread(self._receiver.update, tensors, self._labels.policy_version + 1)
            except EngineGoneError:
                raise
            except (CheckpointError, EngineError) as error:
                raise bad_request(f"the weights in {folder} cannot be taken: {error}", "weights_path") from error
            self._labels.add()


def _is_folder(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except OSError:
        # A name that is too long, say.
        return False
