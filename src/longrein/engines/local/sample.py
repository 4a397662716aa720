"""One token for each row of a batch, with the logprob of the distribution it was drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch

from longrein.types import F32, I32, Sampling


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
    temperatures = torch.tensor([sampling.temperature or 1.0 for sampling in samplings])
    logprobs = torch.log_softmax(logits.div_(temperatures.unsqueeze(1)), dim=-1)
    truncated = [index for index, sampling in enumerate(samplings) if _truncates(sampling)]
    if truncated:
        logprobs[truncated] = _truncate(logprobs[truncated], [samplings[index] for index in truncated])
    cumulated = logprobs.exp().cumsum_(dim=-1)
    targets = torch.as_tensor(uniforms).unsqueeze(1) * cumulated[:, -1:]
    # right=True finds the first token whose cumulated mass exceeds the target, never one of mass 0. A row that is
    # not finite finds none.
    picks = torch.searchsorted(cumulated, targets, right=True).clamp_(max=logits.shape[1] - 1)
    chosen = logprobs.gather(1, picks)
    if greedy:
        picks[greedy] = logits[greedy].argmax(dim=-1, keepdim=True)
        chosen[greedy] = chosen[greedy].masked_fill(logits[greedy].isfinite().all(-1, keepdim=True), 0.0)
    return Sampled(token_ids=picks[:, 0].to(torch.int32).numpy(), logprobs=chosen[:, 0].numpy())


def _truncates(sampling: Sampling) -> bool:
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)


def _truncate(logprobs: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    vocab = logprobs.shape[1]
    top_k = torch.tensor([[sampling.top_k or vocab] for sampling in samplings])
    top_p = torch.tensor([[sampling.top_p] for sampling in samplings])
    min_p = torch.tensor([[math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf] for sampling in samplings])
    ordered, order = logprobs.sort(dim=-1, descending=True)
    ordered = ordered.masked_fill(torch.arange(vocab) >= top_k, -math.inf)
    mass = ordered.softmax(dim=-1)
    dropped = (mass.cumsum(dim=-1) - mass >= top_p) | (ordered < ordered[:, :1] + min_p)
    dropped[:, 0] = False
    kept = ordered.masked_fill(dropped, -math.inf).log_softmax(dim=-1)
    return torch.empty_like(logprobs).scatter_(1, order, kept)
