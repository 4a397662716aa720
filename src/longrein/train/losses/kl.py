"""Distance to a reference policy."""

from __future__ import annotations

from torch import Tensor

from longrein.train.losses.terms import MAX_LOG_RATIO


def kl_k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """``exp(d) - d - 1`` with ``d = reference - logprob``: never negative, unbiased under the policy itself.

    The k3 estimator of Schulman (2020), as in GRPO, arXiv 2402.03300, eq. 4. Tokens of an older policy bias it.

    Args:
        logprobs: ``[n]``, differentiable.
        reference_logprobs: ``[n]``.
    """
    difference = (reference_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1.0
