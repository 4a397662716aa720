"""``AsyncGRPOConfig``: TRL's names on ``transformers.TrainingArguments``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from longrein.train.loss_choices import LossChoices
from longrein.train.step_config import StepConfig, require
from longrein.types import ROLE_WEIGHTS


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
    loss: str = "grpo"
    """``grpo``, ``gspo``, ``cispo`` or ``reinforce``; ``docs/training.md`` has the settings of published methods."""
    advantage: str = "group_normalised"
    """``group_normalised``, ``group_centred``, ``leave_one_out`` or ``batch_normalised``; the worker needs the same."""
    epsilon: float = 0.2
    """How far a ratio may fall below 1."""
    epsilon_high: float = 0.2
    """How far a ratio may rise above 1."""
    delta: float | None = None
    """Bound of the ratio where the advantage is negative, which the clip leaves open above."""
    beta: float = 0.0
    """Weight of the KL to the model that training starts from; above 0, a frozen copy of it is kept and scored (a model
    with adapters is its own, without them)."""
    old_logprobs: str = "sampler"
    """What ratios compare to: ``sampler``, or ``recomputed`` (the trainer before this step)."""
    importance_sampling: str = "none"
    """``token_truncate``, ``token_mask``, ``sequence_truncate`` or ``sequence_mask``: the correction of the gap between
    sampler and recomputed old logprobs."""
    importance_sampling_cap: float = 2.0
    """Largest importance weight."""
    importance_sampling_floor: float = 0.0
    """Smallest importance weight that is not masked."""
    equal_groups: str = "drop"
    """What a group of equal rewards is to its step: ``drop`` (in no denominator), ``count`` or ``replace``."""
    max_staleness: int = 4
    """Steps that a trained token's policy may lag behind the weights in training."""
    loss_aggregation: str = "token"
    """``token``, ``rollout``, ``rollout_sum``, ``group`` or ``constant`` (by ``max_completion_length``)."""
    fork_threshold_tokens: int = 0
    """See :func:`longrein.rows.rows_from_rollout`."""
    role_weights: dict[str, float] = field(default_factory=lambda: {**ROLE_WEIGHTS})
    """What multiplies the loss of each role's tokens; 0 leaves them out. Roles not named keep their default."""
    log_completions: bool = False
    """Print some completions every step."""
    num_completions_to_print: int = 3
    vllm_server_base_url: str | list[str] | None = None
    """Of the vLLM server, or servers, that sample; see ``docs/engines.md``. ``None`` for a ``weight_receiver``."""
    vllm_weight_sync: str = "folder"
    """How weights get there: ``folder``, ``delta`` (what changed), ``lora`` (adapters alone) or ``nccl``."""
    vllm_weights_folder: str = ""
    """Where weights are written for the servers to read; empty means in ``output_dir``, for servers on this machine."""
    vllm_pause: str = "keep"
    """What an update does to requests in flight: ``keep`` has them go on with the new weights, ``wait`` ends them."""
    vllm_server_timeout: float = 240.0
    """Seconds that a server which does not answer is waited for, and that one update of one server may take."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.num_generations >= 2, "num_generations", self.num_generations, "a group needs at least 2")
        require(self.temperature > 0, "temperature", self.temperature, "sample at a temperature above 0")
        require(self.max_staleness >= 0, "max_staleness", self.max_staleness, "give 0 or more")
        require(self.fork_threshold_tokens >= 0, "fork_threshold_tokens", self.fork_threshold_tokens, "give 0 or more")
        require(self.vllm_server_timeout > 0, "vllm_server_timeout", self.vllm_server_timeout, "give more than 0 s")
        self._complete_role_weights()
        self.loss_choices.check()
        require(
            self.rollouts_per_step % self.num_generations == 0,
            "num_generations",
            self.num_generations,
            f"a step has per_device_train_batch_size * gradient_accumulation_steps = {self.rollouts_per_step} "
            "rollouts, which must be divisible by it",
        )

    def _complete_role_weights(self) -> None:
        for role, weight in self.role_weights.items():
            require(role in ROLE_WEIGHTS, "role_weights", role, f"choose roles out of {', '.join(ROLE_WEIGHTS)}")
            require(0 <= weight < math.inf, f"role_weights[{role!r}]", weight, "give a finite weight of 0 or more")
        self.role_weights = {**ROLE_WEIGHTS, **self.role_weights}
        require(any(self.role_weights.values()), "role_weights", self.role_weights, "let some role train")

    @property
    def loss_choices(self) -> LossChoices:
        """What decides about the loss."""
        return LossChoices(**{name: getattr(self, name) for name in LossChoices.__struct_fields__})

    @property
    def groups_per_step(self) -> int:
        """Groups of one optimizer step."""
        return self.rollouts_per_step // self.num_generations
