"""Our rollout worker in the shape that TRL's trainer asks for."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from longrein.errors import ConfigError, WorkerError
from longrein.integrations.trl.buffer import EqualGroups, SampleBuffer
from longrein.integrations.trl.metrics import SampleMetrics
from longrein.integrations.trl.samples import SampleRule
from longrein.integrations.trl.show import ConversationPrinter
from longrein.rollout import worker as ours
from longrein.types import ROLE_WEIGHTS, Role


class HarnessRolloutWorker:
    """For ``rollout_worker=`` of TRL 1.16.0's ``AsyncGRPOTrainer``; its ``RolloutWorkerProtocol``.

    Args:
        fork_threshold_tokens: for engines that render prompts themselves, see :func:`longrein.rows.rows_from_rollout`.
        role_weights: of all roles; multiplies the loss of their tokens.
        equal_groups: see :data:`~longrein.integrations.trl.buffer.EqualGroups`.
        log_completions: print conversations as groups are delivered.
        num_completions_to_print: of each group.
        settings: those of :class:`longrein.HarnessRolloutWorker`. What TRL's config says too comes from
            :func:`~longrein.integrations.trl.shared_settings`.

    Attributes:
        rollout_buffer: samples, for TRL's trainer to take.
        metrics_queue: numbers, likewise.
        model_version: the last one that TRL told of; it counts weight syncs, and each is a policy version.

    Raises:
        ConfigError: as of :class:`longrein.HarnessRolloutWorker`, or an ``advantage`` that TRL's trainer cannot finish.
    """

    def __init__(
        self,
        *,
        fork_threshold_tokens: int = 0,
        role_weights: Mapping[Role, float] = ROLE_WEIGHTS,
        equal_groups: EqualGroups = "count",
        log_completions: bool = False,
        num_completions_to_print: int = 3,
        **settings: Any,
    ) -> None:
        if settings.get("advantage") == "batch_normalised":
            raise ConfigError(
                "HarnessRolloutWorker: advantage='batch_normalised' ends with a division by the step's deviation, "
                "which TRL's trainer does not make; choose group_normalised, group_centred or leave_one_out"
            )
        self._rollouts = ours.HarnessRolloutWorker(**settings)
        self.metrics_queue = SampleMetrics(self._rollouts.metrics_queue)
        self.rollout_buffer = SampleBuffer(
            self._rollouts.rollout_buffer,
            SampleRule(fork_threshold_tokens=fork_threshold_tokens, role_weights=role_weights),
            equal_groups,
            self.metrics_queue,
            ConversationPrinter(num_completions_to_print if log_completions else 0),
        )
        self.model_version = 0

    def start(self) -> None:
        """Start the rollout process and wait until it makes rollouts. Raises :class:`WorkerError` when it cannot."""
        self._rollouts.start()

    def stop(self) -> None:
        """End everything that was started, in under 2 s. May be called twice, and without a start."""
        self._rollouts.stop()

    def update_model_version(self, model_version: int) -> None:
        """The engine now samples with this version."""
        self.model_version = model_version
        self._rollouts.update_model_version(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise :class:`WorkerError` if the rollout process failed, died, or is stuck for ``stale_after_s`` s."""
        self._rollouts.check_health()
        silent_s = time.monotonic() - self._rollouts.rollout_buffer.ledger.alive_at_s
        if silent_s > stale_after_s:
            raise WorkerError(
                f"the rollout worker's process has been stuck for {silent_s:.0f} s (more than {stale_after_s:.0f} s); "
                "a reward function or session factory that blocks its event loop does that"
            )

    def resume(self, taken: Collection[str], model_version: int) -> None:
        """Before :meth:`start`: go on with the rollouts in ``output_dir``.

        Args:
            taken: ids of the groups that are used up.
            model_version: of the weights that training goes on from.
        """
        self._rollouts.resume(taken, model_version)
        self.rollout_buffer.taken = [*taken]
        self.model_version = model_version
