"""Logprobs of the trained tokens, without ever holding logits for a token that does not train.

The output head is most of a small model's cost and nearly all of its memory, and in an agent's transcript most
tokens are tool output. So a hook hands the head only the positions that predict a trained token. Everything else is
the model's own ``forward``, which keeps wrappers (DDP, PEFT) and odd architectures working.
"""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any, Protocol, cast

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longrein.errors import ConfigError
from longrein.train.batch import MicroBatch

CHUNK_LOGITS = 2**25
"""Logits held at once while scoring through a plain head (128 MiB in float32)."""


class TokenScores(msgspec.Struct, frozen=True, kw_only=True):
    """What the weights in training make of the trained tokens, each of shape ``[n]``."""

    logprobs: Tensor
    """Differentiable, natural log, of the distribution after temperature."""
    entropies: Tensor
    """Of that distribution, in nats; no gradient."""


class Scorer(Protocol):
    """Scores the trained tokens of a micro-batch."""

    def score(self, model: nn.Module, batch: MicroBatch) -> TokenScores:
        """Run ``model`` (which may be wrapped) once over ``batch``."""
        ...


class PlainHeadScorer:
    """For models whose logits are what their output head returns: nearly all.

    The head runs outside ``forward``, a chunk of tokens at a time; with more than one chunk, logits are computed
    again in the backward pass in place of being kept.
    """

    def __init__(self, head: nn.Module, temperature: float, chunk_logits: int = CHUNK_LOGITS) -> None:
        self._head = head
        self._temperature = temperature
        self._chunk_logits = chunk_logits

    def score(self, model: nn.Module, batch: MicroBatch) -> TokenScores:
        """See :class:`Scorer`."""
        captured: list[Tensor] = []

        def capture(_head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            captured.append(_select(inputs[0], batch))
            return (captured[0][:1].unsqueeze(0),)

        with self._head.register_forward_pre_hook(capture):
            model(input_ids=batch.input_ids, use_cache=False)
        if not captured:
            raise ConfigError("the model ran without calling its output head; train without torch_compile")
        return self._score_hidden(captured[0], batch.targets)

    def _score_hidden(self, hidden: Tensor, targets: Tensor) -> TokenScores:
        vocab_size = int(cast(Any, self._head).weight.shape[0])
        chunk = max(1, self._chunk_logits // vocab_size)
        if targets.numel() <= chunk:
            return self._score_chunk(hidden, targets)
        parts = [
            cast(TokenScores, checkpoint(self._score_chunk, part, wanted, use_reentrant=False))
            for part, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True)
        ]
        return TokenScores(
            logprobs=torch.cat([part.logprobs for part in parts]),
            entropies=torch.cat([part.entropies for part in parts]),
        )

    def _score_chunk(self, hidden: Tensor, targets: Tensor) -> TokenScores:
        return _score_logits(self._head(hidden), targets, self._temperature)


class ReworkedHeadScorer:
    """For models that scale or cap what the head returns: the head runs inside ``forward``, at trained positions."""

    def __init__(self, head: nn.Module, temperature: float) -> None:
        self._head = head
        self._temperature = temperature

    def score(self, model: nn.Module, batch: MicroBatch) -> TokenScores:
        """See :class:`Scorer`."""

        def select(_head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            return (_select(inputs[0], batch).unsqueeze(0),)

        with self._head.register_forward_pre_hook(select):
            logits = model(input_ids=batch.input_ids, use_cache=False).logits
        return _score_logits(logits.reshape(-1, logits.shape[-1]), batch.targets, self._temperature)


class FullLogitsScorer:
    """For models without a head that can be told apart: logits everywhere, then the trained positions."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature

    def score(self, model: nn.Module, batch: MicroBatch) -> TokenScores:
        """See :class:`Scorer`."""
        logits = model(input_ids=batch.input_ids, use_cache=False).logits
        return _score_logits(_select(logits, batch), batch.targets, self._temperature)


def scorer_for(model: nn.Module, temperature: float) -> Scorer:
    """Choose the cheapest correct scorer, by watching what the model does with its head's output.

    One forward pass of two tokens, in which a hook replaces the head's output by a known ramp from -100 to 100.
    """
    head = cast(Any, model).get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(head, nn.Linear):
        return FullLogitsScorer(temperature)
    probes: list[Tensor] = []

    def replace(_head: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        ramp = torch.linspace(-100, 100, output.shape[-1], device=output.device, dtype=output.dtype)
        probes.append(ramp.expand(output.shape))
        return probes[0]

    device = next(model.parameters()).device
    with torch.no_grad(), head.register_forward_hook(replace):
        logits = model(input_ids=torch.zeros((1, 2), dtype=torch.int64, device=device), use_cache=False).logits
    if len(probes) != 1:
        return FullLogitsScorer(temperature)
    if logits.shape == probes[0].shape and torch.equal(logits, probes[0].to(logits.dtype)):
        return PlainHeadScorer(head, temperature)
    return ReworkedHeadScorer(head, temperature)


def _select(values: Tensor, batch: MicroBatch) -> Tensor:
    """``[b, t, width]`` -> ``[n, width]`` at the positions that predict a trained token."""
    return values.reshape(-1, values.shape[-1]).index_select(0, batch.predictors)


def _score_logits(logits: Tensor, targets: Tensor, temperature: float) -> TokenScores:
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs, entropies = cast(tuple[Tensor, Tensor], _TokenLogprob.apply(logits, targets, temperature))
    return TokenScores(logprobs=logprobs, entropies=entropies)


class _TokenLogprob(torch.autograd.Function):
    """``log_softmax(logits / temperature)`` at one target a row, and the entropy for free.

    Plain autograd would keep the whole log-softmax and make two more arrays of its size in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        scaled = logits / temperature if temperature != 1.0 else logits
        probs = torch.softmax(scaled, dim=-1)
        log_norm = torch.logsumexp(scaled, dim=-1)
        logprobs = scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - log_norm
        entropies = log_norm - torch.linalg.vecdot(probs, scaled)
        ctx.save_for_backward(probs, targets)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        probs, targets = ctx.saved_tensors
        by_logit = (grads[0] / ctx.temperature).unsqueeze(-1)
        return (probs * -by_logit).scatter_add_(-1, targets.unsqueeze(-1), by_logit), None, None
