"""CISPO: the importance weight is clipped, and no token loses its gradient."""

from __future__ import annotations

from longrein.train.losses.terms import ClipBounds, PolicyTokens, TokenLosses, ratios


def cispo_loss(tokens: PolicyTokens, bounds: ClipBounds) -> TokenLosses:
    """``-sg[clip(ratio, 1 - epsilon, 1 + epsilon_high)] * A * logprob`` (MiniMax-M1, arXiv 2506.13585, eq. 4 and 5).

    ``epsilon = 1`` leaves the lower bound out, as the paper does.
    """
    free = ratios(tokens).detach()
    weights = free.clamp(1.0 - bounds.epsilon, 1.0 + bounds.epsilon_high)
    return TokenLosses(
        losses=-weights * tokens.advantages * tokens.logprobs,
        clipped_low=free < 1.0 - bounds.epsilon,
        clipped_high=free > 1.0 + bounds.epsilon_high,
    )
