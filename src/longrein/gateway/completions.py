"""What an engine returns is believed only as far as it makes sense: one bad array would poison a training step."""

from __future__ import annotations

from typing import get_args

import numpy as np

from longrein.engines.base import EngineRequest
from longrein.errors import EngineError
from longrein.types import Completion, FinishReason

LOGPROB_SLACK = 1e-3
"""How far above 0 a logprob may lie: a log-softmax in half precision rounds."""


def check_completion(completion: Completion, request: EngineRequest, vocab_size: int) -> None:
    """Raises :class:`EngineError`, which says what is wrong, for a completion that cannot be true."""
    wrong = _arrays(completion) or _tokens(completion, request, vocab_size) or _stamps(completion)
    if wrong:
        raise EngineError(f"the engine returned a malformed completion: {wrong}; mend the engine or its client")


def _arrays(completion: Completion) -> str:
    for name, array, dtype in (
        ("token_ids", completion.token_ids, np.int32),
        ("logprobs", completion.logprobs, np.float32),
    ):
        # An engine's client is somebody else's code: it may return a list.
        kind = getattr(array, "dtype", type(array).__name__)
        if kind != np.dtype(dtype) or array.ndim != 1:
            return f"{name} is {kind} of shape {getattr(array, 'shape', '?')}, not one row of {np.dtype(dtype)}"
    if completion.token_ids.size != completion.logprobs.size:
        return f"{completion.token_ids.size} token ids with {completion.logprobs.size} logprobs"
    return ""


def _tokens(completion: Completion, request: EngineRequest, vocab_size: int) -> str:
    ids, logprobs = completion.token_ids, completion.logprobs
    if not 1 <= ids.size <= request.sampling.max_tokens:
        return f"{ids.size} tokens where 1 to {request.sampling.max_tokens} were asked for"
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        return f"token ids from {ids.min()} to {ids.max()} in a vocabulary of {vocab_size}"
    # Written so that NaN fails it.
    if not (float(logprobs.max()) <= LOGPROB_SLACK and float(logprobs.min()) > -np.inf):
        return f"logprobs from {logprobs.min()} to {logprobs.max()}, where only finite ones up to 0 make sense"
    return ""


def _stamps(completion: Completion) -> str:
    low, high = completion.min_policy_version, completion.max_policy_version
    if not 0 <= low <= high:
        return f"sampled by policy versions {low} to {high}"
    if completion.finish_reason not in get_args(FinishReason):
        return f"finish_reason {completion.finish_reason!r}, not one of {', '.join(get_args(FinishReason))}"
    return ""
