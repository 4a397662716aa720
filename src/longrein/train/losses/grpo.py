"""GRPO's token loss; Dr. GRPO, DAPO and REINFORCE++ share it and differ in advantage, bounds and aggregation."""

from __future__ import annotations

from longrein.train.losses.clip import clipped_objective
from longrein.train.losses.terms import ClipBounds, PolicyTokens, TokenLosses, ratios


def grpo_loss(tokens: PolicyTokens, bounds: ClipBounds) -> TokenLosses:
    """The clipped objective on each token's own ratio (GRPO, arXiv 2402.03300, eq. 3, without its KL term).

    With the sampler as old policy, the one ratio corrects staleness and any difference between engine and trainer.
    """
    return clipped_objective(ratios(tokens), tokens.advantages, bounds)
