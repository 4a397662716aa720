"""REINFORCE, which RLOO uses with its leave-one-out baseline."""

from __future__ import annotations

import torch

from longrein.train.losses.terms import ClipBounds, PolicyTokens, TokenLosses


def reinforce_loss(tokens: PolicyTokens, bounds: ClipBounds) -> TokenLosses:
    """``-A * logprob``: no ratio and no clip (Williams 1992; RLOO, arXiv 2402.14740). ``bounds`` has no use here.

    Nothing in it corrects for stale samples; a correction of :mod:`longrein.train.correction` does.
    """
    nowhere = torch.zeros_like(tokens.logprobs, dtype=torch.bool)
    return TokenLosses(losses=-tokens.advantages * tokens.logprobs, clipped_low=nowhere, clipped_high=nowhere)
