"""What travels to a spawned process."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

from longrein.errors import ConfigError
from longrein.rollout.process import WorkerSettings


def check_picklable(settings: WorkerSettings) -> None:
    """Say what of a worker's settings cannot travel, before anything starts. Raises :class:`ConfigError`."""
    parts: dict[str, Any] = {
        "harness_session_factory or harness_adapter": settings.runtime.driving,
        "engine": settings.runtime.engine,
        "processing_class": settings.runtime.renderer,
        "dataset": settings.tasks,
        "rollout_reward_fn": settings.rewards.rollout_reward_fn,
        "train_turn_fn": settings.turns.train_turn_fn,
        "agent_turn_fn": settings.turns.agent_turn_fn,
        **{f"reward_funcs[{index}]": function for index, function in enumerate(settings.rewards.reward_funcs)},
    }
    for name, part in parts.items():
        try:
            ForkingPickler.dumps(part)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"HarnessRolloutWorker: {name} cannot travel to the worker's process ({error}); "
                "use a module-level function or class instead of a lambda or a local one"
            ) from error
