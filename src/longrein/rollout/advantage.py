"""Rewards of a group -> advantages of its members.

In every one, ``None`` (unscorable, invariant 4) leaves the baseline and gets 0.0, and so does each member of a group
with fewer than two scored ones or with equal rewards: nothing was compared, and rounding must not pretend otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from longrein.types import AdvantageName

Estimator = Callable[[list[float], float], list[float]]
"""Rewards of at least two scored members, not all equal, and an epsilon -> their advantages."""


def advantages(
    rewards: Sequence[float | None], epsilon: float, name: AdvantageName = "group_normalised"
) -> tuple[float, ...]:
    """One advantage a member.

    Args:
        rewards: one a member; ``None`` for unscorable.
        epsilon: added to a standard deviation that divides.
        name: of the estimator, see :data:`ESTIMATORS`.
    """
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) < 2 or min(scored) == max(scored):
        return tuple(0.0 for _ in rewards)
    values = iter(ESTIMATORS[name](scored, epsilon))
    return tuple(0.0 if reward is None else next(values) for reward in rewards)


def group_normalised(rewards: list[float], epsilon: float) -> list[float]:
    """``(r - mean) / (std + epsilon)`` (GRPO, arXiv 2402.03300, section 4.1.2; sample std as in TRL)."""
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    return [(reward - mean) / (std + epsilon) for reward in rewards]


def group_centred(rewards: list[float], epsilon: float) -> list[float]:
    """``r - mean`` (Dr. GRPO, arXiv 2503.20783): hard and easy tasks are not made to weigh more."""
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def leave_one_out(rewards: list[float], epsilon: float) -> list[float]:
    """``r - mean of the others`` (RLOO, arXiv 2402.14740): an unbiased baseline."""
    total = math.fsum(rewards)
    return [reward - (total - reward) / (len(rewards) - 1) for reward in rewards]


ESTIMATORS: Mapping[AdvantageName, Estimator] = {
    "group_normalised": group_normalised,
    "group_centred": group_centred,
    "leave_one_out": leave_one_out,
    # Its second half, the division by the step's standard deviation, is the trainer's: only it knows the step.
    "batch_normalised": group_centred,
}
