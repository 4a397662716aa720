"""The two ways to sample token ids from token ids: vLLM's own route, and the completions route that every server has.

As vLLM 0.32.0 has them; ``docs/design/vllm_protocol.md`` shows requests and answers.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol, TypeVar

import msgspec
import numpy as np

from longrein.engines.base import EngineRequest
from longrein.engines.vllm.answers import Answer
from longrein.engines.vllm.server import Server
from longrein.errors import EngineError
from longrein.types import F32, I32, FinishReason, Sampling

R = TypeVar("R", bound=msgspec.Struct)
_ONE = msgspec.Meta(min_length=1)


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """What a server sampled."""

    token_ids: I32
    logprobs: F32
    finish_reason: FinishReason
    labels: tuple[str, ...]
    """Of the weights that sampled it, or may have."""
    cached_tokens: int
    """Prompt tokens that came from the server's cache, as far as it says."""


class Route(Protocol):
    """One way to ask."""

    async def ask(self, server: Server, model: str, request: EngineRequest) -> Sampled:
        """Sample one completion.

        Raises:
            ContextLengthError, EngineRouteError, EngineRequestError, EngineError: see
                :meth:`~longrein.engines.vllm.answers.Answer.refuse`.
        """
        ...


class TokensRoute:
    """``/inference/v1/generate``: says which weights sampled which tokens. Needs ``--enable-scale-out``."""

    PATH = "/inference/v1/generate"

    async def ask(self, server: Server, model: str, request: EngineRequest) -> Sampled:
        """See :class:`Route`."""
        body = {
            "request_id": request.request_id,
            "model": model,
            "token_ids": request.prompt_ids.tolist(),
            "sampling_params": {
                **sampling_fields(request.sampling),
                "logprobs": 0,
                "detokenize": bool(request.sampling.stop),
            },
            "stream": False,
        }
        answer = await server.post(self.PATH, body, session=request.conversation_id)
        reply = _decoded(answer, _TokensReply)
        choice = reply.choices[0]
        return _sampled(
            answer,
            reply,
            logprobs=[token.logprob for token in choice.logprobs.content],
            labels=tuple(span.version for span in choice.weight_versions or ()),
        )


class CompletionsRoute:
    """``/v1/completions``: tells no versions, so those of the weights before and after it bound them."""

    PATH = "/v1/completions"

    async def ask(self, server: Server, model: str, request: EngineRequest) -> Sampled:
        """See :class:`Route`."""
        body = {
            "model": model,
            "prompt": request.prompt_ids.tolist(),
            **sampling_fields(request.sampling),
            "logprobs": 0,
            "return_token_ids": True,
        }
        before = await server.label()
        answer = await server.post(self.PATH, body, session=request.conversation_id)
        after = await server.label()
        reply = _decoded(answer, _CompletionsReply)
        return _sampled(answer, reply, logprobs=reply.choices[0].logprobs.token_logprobs, labels=(before, after))


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Every field that decides what is sampled: one left out would be the server's own (``--generation-config``)."""
    seed = {} if sampling.seed is None else {"seed": sampling.seed}
    return {
        "n": 1,
        "max_tokens": sampling.max_tokens,
        "min_tokens": 0,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        # The model's own end-of-text ends a completion only where the request names it.
        "ignore_eos": True,
        "skip_special_tokens": False,
        **seed,
    }


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Cached | None = None


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Token(msgspec.Struct):
    token_id: int
    logprob: float


class _TokenLogprobs(msgspec.Struct):
    content: list[_Token]


class _TokensChoice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _TokenLogprobs
    finish_reason: str
    weight_versions: list[_Span] | None = None


class _TokensReply(msgspec.Struct):
    choices: Annotated[list[_TokensChoice], _ONE]
    usage: _Usage


class _TextLogprobs(msgspec.Struct):
    token_logprobs: list[float]


class _TextChoice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _TextLogprobs
    finish_reason: str


class _CompletionsReply(msgspec.Struct):
    choices: Annotated[list[_TextChoice], _ONE]
    usage: _Usage


def _decoded(answer: Answer, kind: type[R]) -> R:
    if not answer.ok:
        answer.refuse()
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise EngineError(
            f"{answer.url}{answer.path} answered without what a run needs ({error}); it takes token ids and logprobs "
            "from vLLM 0.32 or a server that answers alike"
        ) from error


def _sampled(
    answer: Answer, reply: _TokensReply | _CompletionsReply, *, logprobs: list[float], labels: tuple[str, ...]
) -> Sampled:
    choice = reply.choices[0]
    if choice.finish_reason not in ("stop", "length"):
        raise EngineError(f"{answer.url} ended a completion early: {choice.finish_reason}. See the server's log.")
    details = reply.usage.prompt_tokens_details
    return Sampled(
        token_ids=np.array(choice.token_ids, dtype=np.int32),
        logprobs=np.array(logprobs, dtype=np.float32),
        finish_reason=choice.finish_reason,
        labels=labels,
        cached_tokens=(details.cached_tokens or 0) if details else 0,
    )
