"""TRL's weight sync to an engine of ours: no NCCL, no HTTP, no pause."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from longrein.engines.base import WeightReceiver
from longrein.integrations.trl.worker import HarnessRolloutWorker


class WeightTransfer:
    """TRL's ``WeightTransferProtocol``: what its trainer streams goes to ``receiver``, which then samples with it.

    The engine changes weights between two decode steps and marks what was sampled across the change, so it is not
    paused. TRL folds adapters into the weights that it sends, and sends parameters only: the embedded engine refuses a
    model that has saved buffers too, or frozen parameters.

    Args:
        receiver: the engine's end, such as ``LocalEngineProcess.weights``.
        worker: whose version counts the syncs. TRL tells it of each, after it.
    """

    def __init__(self, receiver: WeightReceiver, worker: HarnessRolloutWorker) -> None:
        self._receiver = receiver
        self._worker = worker

    def init_weight_transfer(self) -> None:
        """Nothing to open: the engine's owner has."""

    def pause(self) -> None:
        """Sessions go on."""

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Publish, and return once the engine samples with the new weights.

        Raises:
            EngineError: the engine is gone, or these are not the weights of its model.
        """
        self._receiver.update(dict(iterator), self._worker.model_version + 1)

    def resume(self) -> None:
        """Nothing was paused."""

    def destroy(self) -> None:
        """The engine lives on with its owner."""
