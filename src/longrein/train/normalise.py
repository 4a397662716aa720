"""What becomes of a step's advantages when the whole step is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec


class StepScale(Protocol):
    """Gives one factor for all advantages of a step."""

    def factor(self, advantages: Sequence[float]) -> float:
        """Of the advantages of all scored rollouts of the step, one each."""
        ...


class AsGiven(msgspec.Struct, frozen=True, kw_only=True):
    """Advantages stay as the worker made them."""

    def factor(self, advantages: Sequence[float]) -> float:
        """1."""
        return 1.0


class BatchNormalised(msgspec.Struct, frozen=True, kw_only=True):
    """Division by the standard deviation over the step's rollouts (REINFORCE++ with baseline, arXiv 2501.03262).

    The advantages are centred in their groups, so their mean over the step is 0 and is not subtracted again: a group of
    equal rewards keeps advantages of exactly 0. Rollouts count once each, however many tokens they have.
    """

    epsilon: float = 1e-4

    def factor(self, advantages: Sequence[float]) -> float:
        """``1 / (std + epsilon)``, population std."""
        if not advantages:
            return 1.0
        return 1.0 / (math.sqrt(math.fsum(value**2 for value in advantages) / len(advantages)) + self.epsilon)
