"""GSPO: one ratio a rollout, the geometric mean of its tokens' ratios."""

from __future__ import annotations

from longrein.train.losses.clip import clipped_objective
from longrein.train.losses.terms import MAX_LOG_RATIO, ClipBounds, PolicyTokens, TokenLosses


def gspo_loss(tokens: PolicyTokens, bounds: ClipBounds) -> TokenLosses:
    """The clipped objective on ``s = exp(mean over the rollout of logprobs - old_logprobs)``.

    GSPO, arXiv 2507.18071, in the token form of its eq. 13: ``s_t = sg[s] * exp(logprob_t - sg[logprob_t])``. Its value
    is ``s`` and its gradient, averaged over the rollout, is that of ``s``, so each token can be computed where its row
    is, as long as ``sg[s]`` is known. The sequence is the whole rollout, all its rows.
    """
    sequence_ratios = tokens.sequence_log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    token_form = sequence_ratios * (tokens.logprobs - tokens.logprobs.detach()).exp()
    return clipped_objective(token_form, tokens.advantages, bounds)
