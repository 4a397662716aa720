"""Which requests are refused before they cost anything."""

from __future__ import annotations

import numpy as np

from longrein.engines.local import wire
from longrein.engines.local.row import Job, Ticket
from longrein.engines.request_checks import out_of_range
from longrein.types import I32, Sampling

ID_BYTES = 4


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
    return out_of_range(sampling)
