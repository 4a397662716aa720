"""``AsyncGRPOConfig``: TRL's names on ``transformers.TrainingArguments``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from longrein.rows import TRAINED_ROLES
from longrein.train.batch import Aggregation
from longrein.train.step_config import StepConfig, require


@dataclass
class AsyncGRPOConfig(StepConfig):
    """Arguments of :class:`~longrein.train.trainer.AsyncGRPOTrainer`.

    ``per_device_train_batch_size`` counts rollouts. It times ``gradient_accumulation_steps`` (times ranks) is one
    optimizer step, and must be divisible by ``num_generations``.

    Raises:
        ConfigError: a value or combination that cannot work.
    """

    learning_rate: float = 1e-6

    num_generations: int = 8
    """Rollouts a group."""
    max_completion_length: int = 2048
    """Tokens a completion; the rollout worker and the engine enforce it."""
    temperature: float = 1.0
    """The sampling temperature. Logits are divided by it, since the engine's logprobs are of that distribution."""
    epsilon: float = 0.2
    epsilon_high: float = 0.2
    max_staleness: int = 4
    """Steps that a trained token's policy may lag behind the weights in training."""
    loss_aggregation: str = "token"
    """``token``: mean over the step's trained tokens. ``rollout``: mean over rollouts of their token means."""
    fork_threshold_tokens: int = 0
    """See :func:`longrein.rows.rows_from_rollout`."""
    roles_trained: tuple[str, ...] = field(default_factory=lambda: tuple(sorted(TRAINED_ROLES)))
    log_completions: bool = False
    """Print some completions every step."""
    num_completions_to_print: int = 3
    vllm_server_base_url: str | None = None
    """Accepted for scripts written for TRL; a trainer refuses it until the vLLM engine exists."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.num_generations >= 2, "num_generations", self.num_generations, "a group needs at least 2")
        require(self.temperature > 0, "temperature", self.temperature, "sample at a temperature above 0")
        require(0 < self.epsilon < 1, "epsilon", self.epsilon, "give a bound between 0 and 1")
        require(self.epsilon_high > 0, "epsilon_high", self.epsilon_high, "give a bound above 0")
        require(self.max_staleness >= 0, "max_staleness", self.max_staleness, "give 0 or more")
        require(self.fork_threshold_tokens >= 0, "fork_threshold_tokens", self.fork_threshold_tokens, "give 0 or more")
        aggregations = get_args(Aggregation)
        require(
            self.loss_aggregation in aggregations,
            "loss_aggregation",
            self.loss_aggregation,
            f"choose one of {', '.join(aggregations)}",
        )
        require(
            self.rollouts_per_step % self.num_generations == 0,
            "num_generations",
            self.num_generations,
            f"a step has per_device_train_batch_size * gradient_accumulation_steps = {self.rollouts_per_step} "
            "rollouts, which must be divisible by it",
        )

    @property
    def groups_per_step(self) -> int:
        """Groups of one optimizer step."""
        return self.rollouts_per_step // self.num_generations
