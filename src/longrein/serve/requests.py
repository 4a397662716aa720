"""One request's prompts and choices -> what the engine is asked for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from longrein.engines.base import EngineRequest
from longrein.types import I32, Sampling


def requests_of(
    request_id: str, session_id: str, prompts: Sequence[I32], sampling: Sampling, choices: int
) -> list[EngineRequest]:
    """Each prompt ``choices`` times, in order; a seed counts up, so that no two choices share their draws.

    Without a session each is a conversation of its own; prompts share their KV all the same.
    """
    return [
        EngineRequest(
            request_id=f"{request_id}-{index}",
            conversation_id=session_id or f"{request_id}-{index}",
            prompt_ids=prompts[index // choices],
            sampling=sampling if sampling.seed is None else _seeded(sampling, sampling.seed + index % choices),
        )
        for index in range(len(prompts) * choices)
    ]


def _seeded(sampling: Sampling, seed: int) -> Sampling:
    return msgspec.structs.replace(sampling, seed=seed)
