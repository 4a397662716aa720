"""What TRL's config and a rollout worker must agree on, told once."""

from __future__ import annotations

from typing import Any, Protocol


class SharedConfig(Protocol):
    """The fields of ``trl.experimental.async_grpo.AsyncGRPOConfig`` that rollouts depend on."""

    num_generations: int
    temperature: float
    max_completion_length: int
    max_staleness: int
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    log_completions: bool
    num_completions_to_print: int | None

    @property
    def world_size(self) -> int:
        """Processes that train."""
        ...


def shared_settings(config: SharedConfig) -> dict[str, Any]:
    """Arguments of :class:`~longrein.integrations.trl.HarnessRolloutWorker` that follow from TRL's config.

    ``groups_per_step`` takes a rollout for one sample; where rollouts give several rows, a step takes fewer groups, and
    rollouts wait longer. ``fork_threshold_tokens`` is not among them: TRL's default is for conversations that are
    rendered again for every call, and ours are not.
    """
    samples_per_step = config.per_device_train_batch_size * config.gradient_accumulation_steps * config.world_size
    settings: dict[str, Any] = {
        "num_generations": config.num_generations,
        "temperature": config.temperature,
        "max_tokens": config.max_completion_length,
        "max_staleness": config.max_staleness,
        "groups_per_step": max(1, -(-samples_per_step // config.num_generations)),
        "log_completions": config.log_completions,
    }
    if config.num_completions_to_print is not None:
        settings["num_completions_to_print"] = config.num_completions_to_print
    return settings
