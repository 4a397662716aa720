"""vLLM's sampling parameters -> ours. What the engine cannot do is refused, never silently left out."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from longrein.serve.refusals import bad_request
from longrein.types import Sampling

Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What the engine's wire and tensors can hold."""


class SamplingBody(msgspec.Struct, frozen=True, kw_only=True):
    """What both token routes read, by vLLM's names (0.32, ``vllm/sampling_params.py``)."""

    n: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    seed: Int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    ignore_eos: bool | None = None
    max_tokens: Int | None = None
    logprobs: Int | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    # What follows is read to be refused.
    min_tokens: Int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    prompt_logprobs: Int | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[Int] | None = None
    logprob_token_ids: list[Int] | None = None
    structured_outputs: Any = None


INERT: dict[str, tuple[object, ...]] = {
    "min_tokens": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "prompt_logprobs": (None,),
    "logit_bias": (None, {}),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "logprob_token_ids": (None, []),
    "structured_outputs": (None,),
}
"""Parameters that the engine does not have, with the values that ask for nothing."""
MOST_CHOICES = 256


def choices_of(body: SamplingBody) -> int:
    """How many completions of one prompt. Raises :class:`GatewayRequestError` (400)."""
    count = 1 if body.n is None else body.n
    if not 1 <= count <= MOST_CHOICES:
        raise bad_request(f"n must be from 1 to {MOST_CHOICES}, got {count}", "n")
    return count


def stops_of(body: SamplingBody) -> tuple[str, ...]:
    """The stop strings."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if "" in stops:
        raise bad_request("stop cannot contain an empty string", "stop")
    return tuple(stops)


def sampling_of(body: SamplingBody, max_tokens: int, eos_token_ids: tuple[int, ...]) -> Sampling:
    """How one completion is to be sampled.

    Unlike vLLM's, a parameter that the request leaves out never comes from the model's ``generation_config``: the
    temperature is 1 and nothing is truncated.

    Raises:
        GatewayRequestError: 400, a parameter that the engine does not have, or more logprobs than it reports.
    """
    for name, inert in INERT.items():
        if getattr(body, name) not in inert:
            raise bad_request(f"{name} is not supported by this server; leave it out", name)
    if body.logprobs not in (None, 0, 1):
        raise bad_request(
            f"logprobs={body.logprobs}: this server reports the sampled token's logprob only; ask for 0 or 1",
            "logprobs",
        )
    stop_ids = (*(body.stop_token_ids or ()), *(() if body.ignore_eos else eos_token_ids))
    return Sampling(
        max_tokens=max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        # vLLM says -1 or 0 for all of them.
        top_k=0 if body.top_k in (None, -1) else body.top_k,
        min_p=body.min_p or 0.0,
        stop=stops_of(body),
        stop_token_ids=tuple(dict.fromkeys(stop_ids)),
        seed=body.seed,
    )
