"""Logprobs of chosen tokens from logits, in little more memory than the logits themselves.

Plain autograd would keep the whole log-softmax and make two more arrays of its size in the backward pass. Here the
logits are kept, and all that is made of them is made for a few rows at a time.
"""

# torch is partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, cast

import msgspec
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longrein.train.asked import Asked

PIECE_LOGITS = 2**22
"""Logits worked on at once (16 MiB in float32)."""


class TokenScores(msgspec.Struct, frozen=True, kw_only=True):
    """What the weights in training make of the trained tokens, each of shape ``[n]``."""

    logprobs: Tensor
    """Differentiable, natural log, of the distribution after temperature."""
    entropies: Tensor
    """Of that distribution, in nats; no gradient."""


class LogitMap(Protocol):
    """What stands between the output of a model's head and the softmax: its own rework and the temperature."""

    def tempered(self, temperature: float) -> LogitMap:
        """The same, and a division by ``temperature`` after it."""
        ...

    def of(self, outputs: Tensor) -> Tensor:
        """Elementwise, always a fresh tensor."""
        ...

    def pulled(self, mapped: Tensor, grad: Tensor) -> Tensor:
        """The gradient for :meth:`of`'s argument from its result and the gradient for that; ``grad`` may be reused."""
        ...


class Scaled(msgspec.Struct, frozen=True, kw_only=True):
    """``factor * x``."""

    factor: float

    def tempered(self, temperature: float) -> Scaled:
        """See :class:`LogitMap`."""
        return Scaled(factor=self.factor / temperature)

    def of(self, outputs: Tensor) -> Tensor:
        """See :class:`LogitMap`."""
        return outputs * self.factor

    def pulled(self, mapped: Tensor, grad: Tensor) -> Tensor:
        """See :class:`LogitMap`."""
        return grad.mul_(self.factor)


class Capped(msgspec.Struct, frozen=True, kw_only=True):
    """``outer * tanh(inner * x)``: a soft cap."""

    inner: float
    outer: float

    def tempered(self, temperature: float) -> Capped:
        """See :class:`LogitMap`."""
        return Capped(inner=self.inner, outer=self.outer / temperature)

    def of(self, outputs: Tensor) -> Tensor:
        """See :class:`LogitMap`."""
        return (outputs * self.inner).tanh_().mul_(self.outer)

    def pulled(self, mapped: Tensor, grad: Tensor) -> Tensor:
        """See :class:`LogitMap`."""
        slopes = (mapped / self.outer).square_().neg_().add_(1.0).mul_(self.inner * self.outer)
        return grad.mul_(slopes)


UNCHANGED = Scaled(factor=1.0)


def score_logits(outputs: Tensor, asked: Asked, mapping: LogitMap) -> TokenScores:
    """Score the trained tokens.

    Args:
        outputs: ``[m, vocabulary]`` of the head, at ``asked``'s positions.
        asked: the tokens.
        mapping: makes logits of the outputs, temperature included.
    """
    logprobs, entropies = cast(tuple[Tensor, Tensor], _TokenLogprob.apply(outputs, asked, mapping))
    return TokenScores(logprobs=logprobs, entropies=entropies)


class _TokenLogprob(torch.autograd.Function):
    """``log_softmax`` at ``n`` targets of ``m`` rows, at least in float32, and the entropy for free."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, asked: Asked, mapping: LogitMap) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(outputs.dtype, torch.float32)
        logprobs = outputs.new_empty(asked.targets.shape, dtype=dtype)
        entropies, log_norms = torch.empty_like(logprobs), outputs.new_empty(outputs.shape[0], dtype=dtype)
        for piece in _pieces(outputs, asked):
            logits = mapping.of(outputs[piece.rows].to(dtype))
            log_norm = torch.logsumexp(logits, dim=-1)
            at, targets = piece.asked.sources, piece.asked.targets
            logprobs[piece.tokens] = logits[at, targets] - log_norm[at]
            entropy = log_norm - torch.linalg.vecdot(torch.softmax(logits, dim=-1), logits)
            entropies[piece.tokens] = entropy[at]
            log_norms[piece.rows] = log_norm
        ctx.save_for_backward(outputs, log_norms)
        ctx.asked, ctx.mapping = asked, mapping
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @cast(Any, once_differentiable)
    def backward(ctx: Any, *grads: Any) -> Any:
        outputs, log_norms = ctx.saved_tensors
        by_output = torch.empty_like(outputs)
        for piece in _pieces(outputs, ctx.asked):
            logits = ctx.mapping.of(outputs[piece.rows].to(log_norms.dtype))
            at, by_token = piece.asked.sources, grads[0][piece.tokens]
            by_row = by_token.new_zeros(logits.shape[0]).index_add_(0, at, by_token)
            by_logit = (logits - log_norms[piece.rows].unsqueeze(-1)).exp_().mul_(by_row.neg_().unsqueeze(-1))
            by_logit.index_put_((at, piece.asked.targets), by_token, accumulate=True)
            by_output[piece.rows] = ctx.mapping.pulled(logits, by_logit)
        return by_output, None, None


class _Piece(msgspec.Struct, frozen=True, kw_only=True):
    rows: slice
    tokens: slice
    asked: Asked


def _pieces(outputs: Tensor, asked: Asked) -> Iterator[_Piece]:
    size = max(1, PIECE_LOGITS // outputs.shape[-1])
    for start in range(0, outputs.shape[0], size):
        stop = min(start + size, outputs.shape[0])
        tokens = slice(int(asked.offsets[start]), int(asked.offsets[stop]))
        yield _Piece(rows=slice(start, stop), tokens=tokens, asked=asked.part(start, stop))
