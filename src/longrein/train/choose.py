"""Names of a configuration -> the objects that they stand for."""

from __future__ import annotations

import math

from longrein.train.correction import Bound, Correction, Mask, SequenceLevel, TokenLevel, Truncate, Uncorrected
from longrein.train.loss_choices import LossChoices
from longrein.train.losses.cispo import cispo_loss
from longrein.train.losses.grpo import grpo_loss
from longrein.train.losses.gspo import gspo_loss
from longrein.train.losses.reinforce import reinforce_loss
from longrein.train.losses.terms import ClipBounds, PolicyLossFunction
from longrein.train.objective import PolicyLoss, PolicyObjective
from longrein.train.old_policy import OldPolicy, RecomputedOld, SamplerAsOld
from longrein.train.reference import Penalty

LOSSES: dict[str, PolicyLossFunction] = {
    "grpo": grpo_loss,
    "gspo": gspo_loss,
    "cispo": cispo_loss,
    "reinforce": reinforce_loss,
}
SEQUENCE_LOSSES = frozenset({"gspo"})
"""Those that read ``sequence_log_ratios``."""
OLD_POLICIES: dict[str, OldPolicy] = {"sampler": SamplerAsOld(), "recomputed": RecomputedOld()}


def policy_objective(choices: LossChoices, penalty: Penalty) -> PolicyObjective:
    """The objective of checked choices."""
    bounds = ClipBounds(
        epsilon=choices.epsilon,
        epsilon_high=choices.epsilon_high,
        delta=math.inf if choices.delta is None else choices.delta,
    )
    return PolicyObjective(
        loss=PolicyLoss(function=LOSSES[choices.loss], bounds=bounds, reads_sequences=choices.loss in SEQUENCE_LOSSES),
        old_policy=OLD_POLICIES[choices.old_logprobs],
        correction=_correction(choices),
        penalty=penalty,
    )


def _correction(choices: LossChoices) -> Correction:
    if choices.importance_sampling == "none":
        return Uncorrected()
    level, _, way = choices.importance_sampling.partition("_")
    cap = choices.importance_sampling_cap
    bound: Bound = Truncate(cap=cap) if way == "truncate" else Mask(floor=choices.importance_sampling_floor, cap=cap)
    return TokenLevel(bound=bound) if level == "token" else SequenceLevel(bound=bound)
