"""PPO's clip, which GRPO uses on tokens and GSPO on sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from longrein.train.losses.terms import ClipBounds, TokenLosses


def clipped_objective(ratios: Tensor, advantages: Tensor, bounds: ClipBounds) -> TokenLosses:
    """``-min(min(ratio, delta) * A, clip(ratio, 1 - epsilon, 1 + epsilon_high) * A)``.

    PPO, arXiv 1707.06347, eq. 7; unequal bounds: DAPO, arXiv 2503.14476, eq. 8; ``delta`` (infinite unless asked
    for) bounds the term of negative advantages from above: INTELLECT-2, arXiv 2505.07291.

    Args:
        ratios: ``[n]``, differentiable.
        advantages: ``[n]``.
        bounds: where the clip binds. A token that it binds gives no gradient.
    """
    bounded = ratios.clamp(1.0 - bounds.epsilon, 1.0 + bounds.epsilon_high)
    free, held = ratios.clamp(max=bounds.delta) * advantages, bounded * advantages
    binds = (held < free).detach()
    beyond_delta = (ratios > bounds.delta) & (advantages < 0)
    return TokenLosses(
        losses=-torch.minimum(free, held),
        clipped_low=binds & (advantages < 0),
        clipped_high=(binds & (advantages > 0)) | beyond_delta,
    )
