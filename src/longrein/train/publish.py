"""After each step, the weights go where completions are sampled."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback

from longrein.train.publication import Publication
from longrein.train.ranks import Ranks, together
from longrein.train.step_metrics import StepMetrics
from longrein.train.worker_protocol import RolloutWorker


class Publisher(TrainerCallback):
    """Starts the worker, and after each step sends the weights and tells the worker.

    Args:
        publication: what is sent, and to which engine.
        worker: what samples with it.
        metrics: where ``publish_s`` is noted.
        ranks: who stops where rank 0 cannot send or start.
    """

    def __init__(self, publication: Publication, worker: RolloutWorker, metrics: StepMetrics, ranks: Ranks) -> None:
        self._publication = publication
        self._worker = worker
        self._metrics = metrics
        self._ranks = ranks

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A resumed run publishes first: the engine was started from other weights."""
        self.begin(state.global_step)
        with together(self._ranks):
            self._worker.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The policy version is the number of steps taken."""
        started_s = time.perf_counter()
        with together(self._ranks):
            self._publication.send(state.global_step)
            self._worker.update_model_version(state.global_step)
        self._metrics.add({"publish_s": time.perf_counter() - started_s})

    def begin(self, version: int) -> None:
        """The engine has the weights that training starts or goes on from, as ``version``."""
        with together(self._ranks):
            self._publication.begin(version)
            if version:
                self._worker.update_model_version(version)
