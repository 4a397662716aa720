"""Longrein: train language models inside the agents people really run.

Names are imported when first used, so that a machine that only runs sessions never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longrein.harnesses.command import Command
    from longrein.harnesses.opencode import OpenCode
    from longrein.rollout.worker import HarnessRolloutWorker
    from longrein.sessions.agent import AgentSessionFactory
    from longrein.train.grpo_config import AsyncGRPOConfig
    from longrein.train.sft import SftConfig, train_sft
    from longrein.train.trainer import AsyncGRPOTrainer

__version__ = "0.1.0"
__all__ = [
    "AgentSessionFactory",
    "AsyncGRPOConfig",
    "AsyncGRPOTrainer",
    "Command",
    "HarnessRolloutWorker",
    "OpenCode",
    "SftConfig",
    "train_sft",
]

_HOMES = {
    "AgentSessionFactory": "longrein.sessions.agent",
    "AsyncGRPOConfig": "longrein.train.grpo_config",
    "AsyncGRPOTrainer": "longrein.train.trainer",
    "Command": "longrein.harnesses.command",
    "HarnessRolloutWorker": "longrein.rollout.worker",
    "OpenCode": "longrein.harnesses.opencode",
    "SftConfig": "longrein.train.sft",
    "train_sft": "longrein.train.sft",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'longrein' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
