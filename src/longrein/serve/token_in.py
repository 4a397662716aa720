"""``/inference/v1/generate``: token ids in, token ids out (vLLM 0.32, ``entrypoints/scale_out/token_in_token_out``)."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any

import msgspec
import numpy as np

from longrein.engines.base import EngineRequest, HeardEngine, SampledToken
from longrein.gateway.exchange import Exchange
from longrein.serve.answers import send_stream, send_whole
from longrein.serve.bodies import TokenId, read_body
from longrein.serve.generation import Delta, Finish, Generation
from longrein.serve.refusals import bad_request
from longrein.serve.requests import requests_of
from longrein.serve.sampling import SamplingBody, choices_of, sampling_of
from longrein.serve.served import ServedModel
from longrein.serve.stop_reason import stop_reason_of
from longrein.serve.usage import StreamOptions, Usage, usage_of
from longrein.serve.versions import VersionLabels, VersionSpan
from longrein.types import Sampling


class GenerateBody(msgspec.Struct, frozen=True, kw_only=True):
    """The request."""

    token_ids: Annotated[list[TokenId], msgspec.Meta(min_length=1)]
    sampling_params: SamplingBody
    request_id: str = ""
    session_id: str = ""
    model: str | None = None
    return_token_ids: bool | None = None
    output_mode: str = "tokens"
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    features: Any = None
    content_parts: Any = None


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token and its logprob. The rank among all tokens is not computed."""

    token_id: int
    logprob: float
    rank: int | None = None


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A sampled token; the candidates beside it are itself alone."""

    token_id: int
    logprob: float
    rank: int | None = None
    top_logprobs: tuple[TopLogprob, ...]


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One entry a sampled token."""

    content: tuple[TokenLogprob, ...]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or what is new of it."""

    index: int
    finish_reason: Finish | None
    stop_reason: int | str | None = None
    token_ids: tuple[int, ...]
    routed_experts: None = None
    sampling_mask: None = None
    weight_versions: list[VersionSpan] | None = None
    """In a stream in the last chunk only, for the whole of it."""
    logprobs: TokenLogprobs | None = None


class GenerateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    request_id: str
    model: str
    created: int
    usage: Usage
    prompt_token_ids: list[int] | None = None
    output_mode: str = "tokens"
    choices: tuple[Choice, ...]


class GenerateChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a stream."""

    request_id: str
    choices: tuple[Choice, ...]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class GenerateRoute:
    """Serves the route."""

    def __init__(self, served: ServedModel, engine: HeardEngine, labels: VersionLabels) -> None:
        self._served = served
        self._engine = engine
        self._labels = labels

    async def __call__(self, exchange: Exchange, body: bytes) -> None:
        """Answer one request.

        Raises:
            GatewayRequestError: it cannot be served.
        """
        asked = read_body(GenerateBody, body)
        self._served.check_name(asked.model)
        if asked.output_mode != "tokens":
            raise bad_request("output_mode must be 'tokens' here; /v1/completions returns text", "output_mode")
        if len(asked.token_ids) >= self._served.context_length:
            raise bad_request(
                f"The prompt (total length {len(asked.token_ids)}) is longer than the maximum model length of "
                f"{self._served.context_length}; it must leave room for one token at least.",
                "token_ids",
            )
        if asked.features or asked.content_parts:
            raise bad_request("this model reads text only; leave features and content_parts out", "features")
        form = _Form(asked, self._sampling(asked), self._served, self._labels)
        generation = Generation(self._engine, self._requests(asked, form, exchange))
        send = send_stream if asked.stream else send_whole
        await send(exchange, generation, form)

    def _sampling(self, asked: GenerateBody) -> Sampling:
        # As in vLLM: what was not asked for, and what does not fit, is the room that the context has.
        room = self._served.context_length - len(asked.token_ids)
        params = asked.sampling_params
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        return sampling_of(params, max_tokens, self._served.eos_token_ids)

    def _requests(self, asked: GenerateBody, form: _Form, exchange: Exchange) -> list[EngineRequest]:
        prompt = np.array(asked.token_ids, dtype=np.int32)
        session = asked.session_id or exchange.headers.get("x-session-id", "")
        return requests_of(form.request_id, session, (prompt,), form.sampling, choices_of(asked.sampling_params))


class _Form:
    """How the answers to one request are written."""

    def __init__(self, asked: GenerateBody, sampling: Sampling, served: ServedModel, labels: VersionLabels) -> None:
        self.request_id = f"generate-tokens-{asked.request_id or secrets.token_hex(16)}"
        self.sampling = sampling
        self._asked = asked
        self._served = served
        self._labels = labels
        count = choices_of(asked.sampling_params)
        self._tokens: list[list[SampledToken]] = [[] for _ in range(count)]
        """Of a stream, so far."""
        self._prompt_told = not asked.return_token_ids

    def whole(self, deltas: tuple[Delta, ...]) -> bytes:
        return msgspec.json.encode(
            GenerateAnswer(
                request_id=self.request_id,
                model=self._served.name,
                created=int(time.time()),
                usage=usage_of(
                    len(self._asked.token_ids),
                    sum(len(delta.tokens) for delta in deltas),
                    deltas[0].cached_tokens,
                ),
                prompt_token_ids=self._asked.token_ids if self._asked.return_token_ids else None,
                choices=tuple(self._choice(delta, delta.tokens) for delta in deltas),
            )
        )

    def chunk(self, delta: Delta) -> bytes:
        so_far = self._tokens[delta.index]
        so_far += delta.tokens
        prompt = None if self._prompt_told else self._asked.token_ids
        self._prompt_told = True
        options = self._asked.stream_options
        return msgspec.json.encode(
            GenerateChunk(
                request_id=self.request_id,
                choices=(self._choice(delta, tuple(so_far)),),
                usage=self._usage(len(so_far)) if options and options.continuous_usage_stats else None,
                prompt_token_ids=prompt,
            )
        )

    def closing(self) -> tuple[bytes, ...]:
        options = self._asked.stream_options
        if not (options and options.include_usage):
            return ()
        usage = self._usage(sum(map(len, self._tokens)))
        return (msgspec.json.encode(GenerateChunk(request_id=self.request_id, choices=(), usage=usage)),)

    def _usage(self, completion_tokens: int) -> Usage:
        return usage_of(len(self._asked.token_ids), completion_tokens)

    def _choice(self, delta: Delta, so_far: tuple[SampledToken, ...]) -> Choice:
        over = delta.finish_reason is not None
        wanted = self._asked.sampling_params.logprobs is not None
        return Choice(
            index=delta.index,
            finish_reason=delta.finish_reason,
            stop_reason=stop_reason_of(delta.finish_reason, so_far, self.sampling, self._served),
            token_ids=tuple(token.token_id for token in delta.tokens),
            weight_versions=self._labels.spans([token.policy_version for token in so_far]) if over else None,
            logprobs=TokenLogprobs(content=tuple(map(_logprob, delta.tokens))) if wanted else None,
        )


def _logprob(token: SampledToken) -> TokenLogprob:
    top = TopLogprob(token_id=token.token_id, logprob=token.logprob)
    return TokenLogprob(token_id=token.token_id, logprob=token.logprob, top_logprobs=(top,))
