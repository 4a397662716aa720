"""What every trainer of ours adds to ``transformers.TrainingArguments``."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from longrein.errors import ConfigError


@dataclass
class StepConfig(TrainingArguments):
    """``TrainingArguments`` that log every step, draw no bars, and count batches in rollouts.

    Raises:
        ConfigError: a value that cannot work; the message names it.
    """

    micro_batch_tokens: int = 4096
    """Tokens of one forward and backward pass, padding included; changes memory and speed, never the gradient."""
    model_init_kwargs: dict[str, Any] | None = None
    """Passed to ``from_pretrained`` when the model is a path. Weights load as float32 unless this says otherwise."""
    ignore_data_skip: bool = True
    """A resumed run takes new steps; there is nothing to skip."""
    logging_steps: float = 1
    disable_tqdm: bool | None = True
    report_to: str | list[str] | None = "none"
    use_cache: bool = field(default=True)
    """Only written to the saved model's config (generation wants it); training itself never caches."""

    def __post_init__(self) -> None:
        if self.activation_checkpointing is None:
            # The old name is what scripts use; the library warns about it, even when it is False.
            self.activation_checkpointing, self.gradient_checkpointing = self.gradient_checkpointing, None
        super().__post_init__()
        require(self.micro_batch_tokens >= 1, "micro_batch_tokens", self.micro_batch_tokens, "give at least 1")
        require(not self.fp16, "fp16", self.fp16, "use bf16=True or float32; loss scaling hides diverged steps")
        require(
            self.world_size == 1 and self.n_gpu <= 1,
            "world size",
            max(self.world_size, self.n_gpu),
            "this version trains on one device; set CUDA_VISIBLE_DEVICES to one",
        )

    @property
    def rollouts_per_step(self) -> int:
        """Rollouts of one optimizer step, over all accumulation steps and ranks."""
        return int(self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size)


def require(holds: bool, name: str, value: object, remedy: str) -> None:
    """Raise :class:`~longrein.errors.ConfigError` about one field unless ``holds``."""
    if not holds:
        raise ConfigError(f"training config: {name}={value!r} cannot work; {remedy}")
