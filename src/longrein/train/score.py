"""Logprobs of the trained tokens, without ever holding logits for a token that does not train.

The output head is most of a small model's cost and nearly all of its memory, and in an agent's transcript most
tokens are tool output. So the head only gets the positions that predict a trained token. Everything else is the
model's own ``forward``, which keeps wrappers (DDP, PEFT) and odd architectures working.
"""

# torch and transformers are partly untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longrein.errors import ConfigError
from longrein.train.asked import Asked
from longrein.train.batch import MicroBatch
from longrein.train.head_probe import KnownHead, NoHead, ReworkedHead, probe_head
from longrein.train.token_logprob import UNCHANGED, TokenScores, score_logits

logger = logging.getLogger(__name__)

CHUNK_LOGITS = 2**25
"""Logits held at once while scoring through a known head (128 MiB in float32)."""

Forward = Callable[[Tensor], Tensor]


class Scorer(Protocol):
    """Scores the trained tokens of a micro-batch."""

    def score(self, model: nn.Module, batch: MicroBatch) -> TokenScores:
        """Run ``model`` (which may be wrapped) once over ``batch``."""
        ...


class ChunkedScorer:
    """For models whose logits are what their head returns, or that scaled or capped: nearly all.

    In the head's place, ``forward`` scores the trained tokens, a chunk at a time; with more than one chunk, logits are
    computed again in the backward pass in place of being kept. Since it happens inside ``forward``, whoever shards the
    head's weights (FSDP) has them whole by then.
    """

    def __init__(self, head: KnownHead, temperature: float, chunk_logits: int = CHUNK_LOGITS) -> None:
        self._head = head.module
        self._mapping = head.mapping.tempered(temperature)
        self._chunk = max(1, chunk_logits // head.vocab_size)

    def score(self, model: nn.Module, batch: MicroBatch) -> TokenScores:
        """See :class:`Scorer`."""
        scored: list[Tensor] = []

        def score_instead(hidden: Tensor) -> Tensor:
            scores = self._score_hidden(_select(hidden, batch.asked), batch.asked, forward)
            scored.append(torch.stack([scores.logprobs, scores.entropies], dim=-1))
            return scored[0]

        forward: Forward = cast(Any, self._head).forward
        with _forward_as(self._head, score_instead):
            output = batch.layout.forward(model, batch.input_ids).logits
        if not scored:
            raise ConfigError("the model ran without calling its output head; train without torch_compile")
        # What the model makes of scores is of no use, but wrappers (DDP, FSDP) wait for a gradient of its output.
        logprobs, entropies = (scored[0] + 0.0 * output).unbind(-1)
        return TokenScores(logprobs=logprobs, entropies=entropies.detach())

    def _score_hidden(self, hidden: Tensor, asked: Asked, forward: Forward) -> TokenScores:
        def score_chunk(part: Tensor, asked_there: Asked) -> TokenScores:
            return score_logits(forward(part), asked_there, self._mapping)

        size = hidden.shape[0]
        if size <= self._chunk:
            return score_chunk(hidden, asked)
        parts = [
            cast(TokenScores, checkpoint(score_chunk, part, asked.part(start, start + len(part)), use_reentrant=False))
            for start, part in zip(range(0, size, self._chunk), hidden.split(self._chunk), strict=True)
        ]
        return TokenScores(
            logprobs=torch.cat([part.logprobs for part in parts]),
            entropies=torch.cat([part.entropies for part in parts]),
        )


@contextmanager
def _forward_as(module: nn.Module, forward: Forward) -> Generator[None, None, None]:
    """Its hooks stay as they are."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if before is not None:
            module.__dict__["forward"] = before


class ReworkedHeadScorer:
    """For models that make something odd of what the head returns: it runs inside ``forward``, at trained positions."""

    def __init__(self, head: nn.Module, temperature: float) -> None:
        self._head = head
        self._mapping = UNCHANGED.tempered(temperature)

    def score(self, model: nn.Module, batch: MicroBatch) -> TokenScores:
        """See :class:`Scorer`."""

        def select(_head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            return (_select(inputs[0], batch.asked).unsqueeze(0),)

        with self._head.register_forward_pre_hook(select):
            logits = batch.layout.forward(model, batch.input_ids).logits
        return score_logits(logits.reshape(-1, logits.shape[-1]), batch.asked, self._mapping)


class FullLogitsScorer:
    """For models without a head that can be told apart: logits everywhere, then the trained positions."""

    def __init__(self, temperature: float) -> None:
        self._mapping = UNCHANGED.tempered(temperature)

    def score(self, model: nn.Module, batch: MicroBatch) -> TokenScores:
        """See :class:`Scorer`."""
        # Nothing here holds on to the logits of the other positions.
        chosen = _select(batch.layout.forward(model, batch.input_ids).logits, batch.asked)
        return score_logits(chosen, batch.asked, self._mapping)


def scorer_for(model: nn.Module, temperature: float) -> Scorer:
    """Choose the cheapest correct scorer, by watching what the model does with its head's output."""
    match probe_head(model):
        case KnownHead() as head:
            return ChunkedScorer(head, temperature)
        case ReworkedHead(module=module):
            logger.warning(
                "%s makes something of its head's output that is neither a scale nor a soft cap: logits of all trained "
                "tokens of a micro-batch are held at once; lower micro_batch_tokens if memory is short",
                type(model).__name__,
            )
            return ReworkedHeadScorer(module, temperature)
        case NoHead(reason=reason):
            logger.warning(
                "logits of all tokens of a micro-batch are held at once, since of %s %s; lower micro_batch_tokens if "
                "memory is short",
                type(model).__name__,
                reason,
            )
            return FullLogitsScorer(temperature)


def _select(values: Tensor, asked: Asked) -> Tensor:
    """``[b, t, width]`` -> ``[m, width]`` at the positions that predict a trained token."""
    return values.reshape(-1, values.shape[-1]).index_select(0, asked.positions)
