"""Requests that are malformed whatever the model is: refused here, where only they fail, and not on the wire."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from longrein.engines.base import EngineRequest
from longrein.errors import EngineRequestError
from longrein.types import Sampling

LEAST_TEMPERATURE = 1e-5
"""Logits divided by less overflow; 0 is greedy."""
_IDS = np.iinfo(np.int32)


def refuse_malformed(request: EngineRequest) -> None:
    """Raise :class:`EngineRequestError` for ids that are no int32 numbers, or sampling of other types than it has."""
    ids = request.prompt_ids
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise EngineRequestError(f"prompt_ids must be whole numbers, shape [n]; got {ids.dtype} of shape {ids.shape}")
    # As int32 they would be other ids.
    if ids.dtype != np.int32 and ids.size and not (_IDS.min <= ids.min() and ids.max() <= _IDS.max):
        raise EngineRequestError(f"the prompt holds id {ids.max()}, outside of any vocabulary")
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(request.sampling), type=Sampling)
    except (msgspec.ValidationError, OverflowError, UnicodeEncodeError, TypeError) as error:
        raise EngineRequestError(f"this sampling cannot be: {error}; got {request.sampling}") from error


def out_of_range(sampling: Sampling) -> str:
    """What is wrong with a sampling that no model can do; empty if nothing is. As JSON, NaN would be a default."""
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
