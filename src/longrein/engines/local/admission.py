"""Which requests are refused before they cost anything."""

from __future__ import annotations

import math

import numpy as np

from longrein.engines.local import wire
from longrein.engines.local.row import Job, Ticket
from longrein.types import I32, Sampling

ID_BYTES = 4
LEAST_TEMPERATURE = 1e-5
"""Logits divided by less overflow; 0 is greedy."""


def admit(ticket: Ticket, request: wire.Generate, vocab_size: int, context_length: int) -> Job | wire.Reply:
    """A job for the batch, or the refusal."""
    if len(request.prompt) % ID_BYTES:
        return wire.RefusedRequest(call=ticket.call, message="the prompt is cut off: its bytes are no whole token ids")
    prompt_ids = np.frombuffer(request.prompt, dtype=np.int32)
    complaint = _complaint(prompt_ids, request.sampling, vocab_size)
    if complaint:
        return wire.RefusedRequest(call=ticket.call, message=complaint)
    room = context_length - prompt_ids.size
    if room < 1:
        return wire.RefusedContext(
            call=ticket.call,
            message=f"the prompt of {prompt_ids.size} tokens leaves no room in the context of {context_length} tokens",
        )
    return Job(
        ticket=ticket,
        conversation_id=request.conversation_id,
        prompt_ids=prompt_ids,
        sampling=request.sampling,
        max_tokens=min(request.sampling.max_tokens, room),
    )


def _complaint(prompt_ids: I32, sampling: Sampling, vocab_size: int) -> str:
    if prompt_ids.size == 0:
        return "the prompt is empty; there is nothing to continue"
    low, high = int(prompt_ids.min()), int(prompt_ids.max())
    if low < 0 or high >= vocab_size:
        return f"the prompt holds id {low if low < 0 else high}, outside the model's vocabulary of {vocab_size}"
    ranges = {
        "max_tokens": sampling.max_tokens >= 1,
        "temperature": sampling.temperature == 0 or LEAST_TEMPERATURE <= sampling.temperature < math.inf,
        "top_p": 0 < sampling.top_p <= 1,
        "top_k": sampling.top_k >= 0,
        "min_p": 0 <= sampling.min_p <= 1,
        "seed": sampling.seed is None or sampling.seed >= 0,
    }
    wrong = [name for name, fine in ranges.items() if not fine]
    return f"sampling.{wrong[0]}={getattr(sampling, wrong[0])} is out of range" if wrong else ""
