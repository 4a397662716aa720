"""What every trainer of ours adds to ``transformers.TrainingArguments``."""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, cast

from transformers import TrainingArguments

from longrein.errors import ConfigError

FSDP = "ACCELERATE_USE_FSDP"
"""Set by ``accelerate launch --use_fsdp``."""
DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"

TRACKERS = {"trackio": "trackio", "wandb": "wandb", "mlflow": "mlflow"}
"""Of ``report_to`` -> the package that it needs. The library says so only when a trainer is made, after the worker."""


@dataclass
class StepConfig(TrainingArguments):
    """``TrainingArguments`` that log every step, draw no bars, and count batches in rollouts.

    Raises:
        ConfigError: a value that cannot work; the message names it.
    """

    micro_batch_tokens: int = 4096
    """Tokens of one forward and backward pass, padding included; changes memory and speed, never the gradient."""
    shared_prefix: bool = True
    """Feed a beginning that rows share once, in place of once a row; changes speed, never the gradient."""
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
        self._refuse_what_cannot_work()
        require(
            self.n_gpu <= 1,
            "GPUs in this process",
            self.n_gpu,
            "start one process a device with torchrun or accelerate launch, or set CUDA_VISIBLE_DEVICES to one",
        )

    def _refuse_what_cannot_work(self) -> None:
        half = self.fp16 or os.environ.get("ACCELERATE_MIXED_PRECISION") == "fp16"
        require(not half, "fp16", half, "use bf16=True or float32; loss scaling hides diverged steps")
        for name in self.report_to or ():
            there = name not in TRACKERS or find_spec(TRACKERS[name]) is not None
            require(there, "report_to", name, f"install it (pip install {name}), or report to 'none'")
        self._refuse_other_sharding()

    def _refuse_other_sharding(self) -> None:
        """Of FSDP1 and DeepSpeed, parts of the weights would be published for the whole."""
        deepspeed = bool(self.deepspeed) or launched_with(DEEPSPEED)
        require(not deepspeed, "deepspeed", deepspeed, "shard with FSDP2")
        version = os.environ.get("FSDP_VERSION", "2") if launched_with(FSDP) else "2"
        if self.fsdp:
            version = str(cast("dict[str, Any]", self.fsdp_config or {}).get("version", 2))
        require(version == "2", "FSDP version", version, "use 2 (--fsdp_version 2, or fsdp_config={'version': 2})")

    @property
    def rollouts_per_step(self) -> int:
        """Rollouts of one optimizer step, over all accumulation steps and ranks."""
        return int(self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size)


def launched_with(name: str) -> bool:
    """Whether ``accelerate launch`` set this switch."""
    return os.environ.get(name, "false").lower() == "true"


def require(holds: bool, name: str, value: object, remedy: str) -> None:
    """Raise :class:`~longrein.errors.ConfigError` about one field unless ``holds``."""
    if not holds:
        raise ConfigError(f"training config: {name}={value!r} cannot work; {remedy}")
