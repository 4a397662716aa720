"""One token for each row of a batch, with the logprob of the distribution it was drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch
from torch.nn import functional

from longrein.types import F32, I32, Sampling

_STRETCH = 256
"""Tokens whose mass is summed at once."""


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids int32 ``[n]`` and their logprobs float32 ``[n]``."""

    token_ids: I32
    logprobs: F32


def sample(logits: torch.Tensor, samplings: Sequence[Sampling], uniforms: F32) -> Sampled:
    """Draw one token a row by inverting the cumulated distribution at ``uniforms``.

    Temperature first, then top-k, top-p (on what top-k left) and min-p, then renormalised. At temperature 0 the
    most likely token is taken; that distribution has all its mass there, so its logprob is 0.

    Args:
        logits: float32 ``[n, vocab]``; overwritten.
        samplings: one a row.
        uniforms: float32 ``[n]`` in ``[0, 1)``.
    """
    greedy = [index for index, sampling in enumerate(samplings) if sampling.temperature == 0]
    temperatures = [sampling.temperature or 1.0 for sampling in samplings]
    if any(temperature != 1 for temperature in temperatures):
        logits.div_(torch.tensor(temperatures).unsqueeze(1))
    truncated = [index for index, sampling in enumerate(samplings) if _truncates(sampling)]
    if truncated:
        logits[truncated] = _truncate(logits[truncated], [samplings[index] for index in truncated])
    if greedy:
        logits[greedy] = _all_on_the_likeliest(logits[greedy])
    probabilities = torch.softmax(logits, dim=-1, out=logits)
    picks = _draw(probabilities, torch.as_tensor(uniforms).unsqueeze(1)).clamp_(max=logits.shape[1] - 1)
    chosen = probabilities.gather(1, picks).log_()
    return Sampled(token_ids=picks[:, 0].to(torch.int32).numpy(), logprobs=chosen[:, 0].numpy())


def _all_on_the_likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Logits of a distribution with all its mass there; NaN where they are not finite."""
    ill = (logits.isnan() | logits.isposinf()).any(-1, keepdim=True)
    best = logits.argmax(dim=-1, keepdim=True)
    return torch.full_like(logits, -math.inf).scatter_(1, best, 0.0).masked_fill_(ill, math.nan)


def _draw(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Where the cumulated distribution passes ``uniforms`` ``[n, 1]`` of its whole; never at a token of mass 0.

    First in which stretch, then where in it: a running sum over a whole vocabulary is many times as slow as plain sums.
    A row that is not finite finds nothing in its stretch.
    """
    missing = -probabilities.shape[1] % _STRETCH
    padded = functional.pad(probabilities, (0, missing)) if missing else probabilities
    stretches = padded.view(probabilities.shape[0], -1, _STRETCH)
    cumulated = stretches.sum(dim=-1).cumsum(dim=-1)
    targets = uniforms * cumulated[:, -1:]
    # right=True finds the first whose cumulated mass exceeds the target.
    which = torch.searchsorted(cumulated, targets, right=True).clamp_(max=cumulated.shape[1] - 1)
    mass = stretches.gather(1, which.unsqueeze(-1).expand(-1, -1, _STRETCH)).squeeze(1)
    before = cumulated.gather(1, which) - mass.sum(dim=-1, keepdim=True)
    within = mass.cumsum(dim=-1)
    # Sums in another order differ in the last bits: what lies beyond the stretch is its last token that has mass.
    last = torch.searchsorted(within, within[:, -1:].contiguous())
    inner = torch.minimum(torch.searchsorted(within, targets - before, right=True), last)
    return which * _STRETCH + inner


def _truncates(sampling: Sampling) -> bool:
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)


def _truncate(logits: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Logits with minus infinity for what is left out."""
    vocab = logits.shape[1]
    top_k = torch.tensor([[min(sampling.top_k or vocab, vocab)] for sampling in samplings])
    top_p = torch.tensor([[sampling.top_p] for sampling in samplings])
    min_p = torch.tensor([[math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf] for sampling in samplings])
    ordered, order = logits.sort(dim=-1, descending=True)
    ordered = ordered.masked_fill(torch.arange(vocab) >= top_k, -math.inf)
    mass = ordered.softmax(dim=-1)
    dropped = (mass.cumsum(dim=-1) - mass >= top_p) | (ordered < ordered[:, :1] + min_p)
    dropped[:, 0] = False
    kept = ordered.masked_fill(dropped, -math.inf)
    return torch.empty_like(logits).scatter_(1, order, kept)
