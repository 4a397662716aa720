"""Which loss, correction and bounds a run asks for, and which combinations cannot work. Imports no torch."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import msgspec

from longrein.errors import ConfigError
from longrein.types import AdvantageName

LossName = Literal["grpo", "gspo", "cispo", "reinforce"]
OldLogprobs = Literal["sampler", "recomputed"]
ImportanceSampling = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
EqualGroups = Literal["count", "drop", "replace"]
Aggregation = Literal["token", "rollout", "rollout_sum", "group", "constant"]
"""How a step's tokens are averaged, see :func:`longrein.train.batch.share_step`."""

NAMES: dict[str, Any] = {
    "loss": LossName,
    "advantage": AdvantageName,
    "loss_aggregation": Aggregation,
    "old_logprobs": OldLogprobs,
    "importance_sampling": ImportanceSampling,
    "equal_groups": EqualGroups,
}
"""Field of :class:`LossChoices` -> the names that it knows."""


class LossChoices(msgspec.Struct, frozen=True, kw_only=True):
    """See ``docs/training.md``; fields have the names of the configuration."""

    loss: str
    advantage: str
    loss_aggregation: str
    epsilon: float
    epsilon_high: float
    delta: float | None
    beta: float
    old_logprobs: str
    importance_sampling: str
    importance_sampling_cap: float
    importance_sampling_floor: float
    equal_groups: str
    max_staleness: int

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: every problem in one message.
        """
        problems = [*self._unknown_names(), *self._impossible_numbers(), *self._clashes()]
        if problems:
            raise ConfigError(f"training config: {'; '.join(problems)}")

    def _unknown_names(self) -> list[str]:
        return [
            f"{field}={getattr(self, field)!r} cannot work; choose one of {', '.join(get_args(names))}"
            for field, names in NAMES.items()
            if getattr(self, field) not in get_args(names)
        ]

    def _impossible_numbers(self) -> list[str]:
        bounds = {
            "epsilon": (0 < self.epsilon <= 1, "give a bound above 0 and up to 1"),
            "epsilon_high": (0 < self.epsilon_high < math.inf, "give a bound above 0"),
            "delta": (
                self.delta is None or 1 + self.epsilon_high < self.delta < math.inf,
                "give a bound of the ratio above 1 + epsilon_high",
            ),
            "beta": (0 <= self.beta < math.inf, "give a weight of 0 or more"),
            "importance_sampling_cap": (1 <= self.importance_sampling_cap < math.inf, "give a weight of 1 or more"),
            "importance_sampling_floor": (0 <= self.importance_sampling_floor < 1, "give a weight from 0 to below 1"),
        }
        return [
            f"{name}={getattr(self, name)!r} cannot work; {fix}" for name, (holds, fix) in bounds.items() if not holds
        ]

    def _clashes(self) -> list[str]:
        problems: list[str] = []
        if self.delta is not None and self.loss not in ("grpo", "gspo"):
            problems.append(f"delta has no meaning for loss={self.loss!r}; leave it out")
        if self.importance_sampling != "none" and self.old_logprobs == "sampler":
            problems.append(
                f"importance_sampling={self.importance_sampling!r} weighs old against sampler, which are the same with "
                "old_logprobs='sampler'; set old_logprobs='recomputed'"
            )
        if self.importance_sampling_floor and not self.importance_sampling.endswith("_mask"):
            problems.append(
                f"importance_sampling_floor is for masking, not for importance_sampling={self.importance_sampling!r}; "
                "leave it out or mask"
            )
        if self.max_staleness and not self._corrects():
            problems.append(
                f"loss={self.loss!r} with old_logprobs={self.old_logprobs!r} does not see who sampled, so tokens up to "
                f"max_staleness={self.max_staleness} steps old would train uncorrected; set old_logprobs='recomputed' "
                "and an importance_sampling, or max_staleness=0"
            )
        return problems

    def _corrects(self) -> bool:
        by_ratio = self.old_logprobs == "sampler" and self.loss != "reinforce"
        return by_ratio or self.importance_sampling != "none"
