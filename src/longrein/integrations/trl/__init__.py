"""TRL 1.16.0's own ``AsyncGRPOTrainer`` on Longrein's rollouts.

Nothing here imports TRL: its trainer asks for shapes, not for classes.
"""

from longrein.integrations.trl.checkpoints import CheckpointRollouts
from longrein.integrations.trl.shared import shared_settings
from longrein.integrations.trl.weights import WeightTransfer
from longrein.integrations.trl.worker import HarnessRolloutWorker

__all__ = ["CheckpointRollouts", "HarnessRolloutWorker", "WeightTransfer", "shared_settings"]
