"""Worker and trainer are told some things twice; they must be told the same."""

from __future__ import annotations

from typing import Any

from longrein.engines.vocabulary import vocabulary_digest
from longrein.errors import ConfigError
from longrein.train.grpo_config import AsyncGRPOConfig
from longrein.train.worker_protocol import RolloutWorker

TWICE_TOLD = {
    "temperature": "temperature",
    "num_generations": "num_generations",
    "max_staleness": "max_staleness",
    "groups_per_step": "groups_per_step",
    "advantage": "advantage",
    "max_tokens": "max_completion_length",
}
"""Attribute of a worker -> attribute of the configuration."""


def check_agreement(worker: RolloutWorker, config: AsyncGRPOConfig) -> None:
    """Compare what the worker exposes of :data:`TWICE_TOLD`; what it does not have is not compared.

    Raises:
        ConfigError: names every pair that differs, with both values.
    """
    differing = [
        f"worker {theirs}={getattr(worker, theirs)!r}, config {ours}={getattr(config, ours)!r}"
        for theirs, ours in TWICE_TOLD.items()
        if hasattr(worker, theirs) and getattr(worker, theirs) != getattr(config, ours)
    ]
    if differing:
        note = (
            "; the config's groups_per_step is per_device_train_batch_size * gradient_accumulation_steps / "
            "num_generations"
        )
        raise ConfigError(
            f"AsyncGRPOTrainer: rollout worker and config disagree: {'; '.join(differing)}. Give both the same values"
            f"{note if 'groups_per_step' in ' '.join(differing) else ''}."
        )


def check_vocabulary(worker: RolloutWorker, tokenizer: Any) -> None:
    """Compare what the worker's ids mean with the trainer's tokenizer, where the worker exposes ``vocabulary``.

    Raises:
        ConfigError: they are of two vocabularies.
        RenderError: the worker has no tokenizer, or no chat template.
    """
    theirs = getattr(worker, "vocabulary", None)
    if theirs is not None and theirs != vocabulary_digest(tokenizer.get_vocab()):
        raise ConfigError(
            "AsyncGRPOTrainer: the rollout worker's tokenizer (its processing_class, or that of model_name) and the "
            f"trainer's ({tokenizer.name_or_path!r}) have different vocabularies; give both the model's own"
        )
