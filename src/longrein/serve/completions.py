"""``/v1/completions``: text or token ids in, text and token ids out (OpenAI, with the fields that vLLM 0.32 adds)."""

from __future__ import annotations

from typing import Any

import numpy as np

from longrein.engines.base import HeardEngine
from longrein.gateway.exchange import Exchange
from longrein.serve.answers import send_stream, send_whole
from longrein.serve.bodies import TokenId, read_body
from longrein.serve.completion_form import CompletionForm, FormSettings
from longrein.serve.generation import Generation
from longrein.serve.refusals import bad_request
from longrein.serve.requests import requests_of
from longrein.serve.sampling import SamplingBody, choices_of, sampling_of
from longrein.serve.served import ServedModel
from longrein.serve.text import TextRules
from longrein.serve.usage import StreamOptions
from longrein.types import I32

DEFAULT_MAX_TOKENS = 16
MOST_COMPLETIONS = 1024
"""Of one request: prompts times choices. Many more would keep everybody else waiting for minutes."""


class CompletionsBody(SamplingBody, frozen=True, kw_only=True):
    """The request."""

    prompt: str | list[str | TokenId | list[TokenId]]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool = True
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    request_id: str = ""
    session_id: str = ""
    # What follows is read to be refused.
    echo: bool | None = None
    suffix: str | None = None
    use_beam_search: bool | None = None
    best_of: int | None = None
    response_format: Any = None


INERT: dict[str, tuple[object, ...]] = {
    "echo": (None, False),
    "suffix": (None, ""),
    "use_beam_search": (None, False),
    "best_of": (None, 1),
    "response_format": (None, {"type": "text"}),
}
"""Parameters that this route does not have, with the values that ask for nothing."""


class CompletionsRoute:
    """Serves the route."""

    def __init__(self, served: ServedModel, engine: HeardEngine) -> None:
        self._served = served
        self._engine = engine

    async def __call__(self, exchange: Exchange, body: bytes) -> None:
        """Answer one request.

        Raises:
            GatewayRequestError: it cannot be served.
        """
        asked = read_body(CompletionsBody, body)
        self._served.check_name(asked.model)
        for name, inert in INERT.items():
            if getattr(asked, name) not in inert:
                raise bad_request(f"{name} is not supported by this server; leave it out", name)
        prompts = self._prompts(asked)
        max_tokens = DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
        self._check_room(prompts, max_tokens)
        sampling = sampling_of(asked, max_tokens, self._served.eos_token_ids)
        choices = choices_of(asked)
        if len(prompts) * choices > MOST_COMPLETIONS:
            raise bad_request(
                f"{len(prompts)} prompts with n={choices} are more than {MOST_COMPLETIONS} completions; ask in parts",
                "n",
            )
        settings = FormSettings(
            request_id=asked.request_id,
            sampling=sampling,
            prompts=tuple(prompts),
            choices=choices,
            rules=_rules(asked, sampling.stop),
            logprobs=asked.logprobs is not None,
            return_token_ids=bool(asked.return_token_ids),
            tokens_as_ids=bool(asked.return_tokens_as_token_ids),
            stream_options=asked.stream_options or StreamOptions(),
        )
        form = CompletionForm(settings, self._served)
        session = asked.session_id or exchange.headers.get("x-session-id", "")
        generation = Generation(self._engine, requests_of(form.answer_id, session, prompts, sampling, choices))
        await (send_stream if asked.stream else send_whole)(exchange, generation, form)

    def _prompts(self, asked: CompletionsBody) -> list[I32]:
        prompt = asked.prompt
        several = list(prompt) if isinstance(prompt, list) else [prompt]
        if several and all(isinstance(part, int) for part in several):
            several = [several]
        if not 1 <= len(several) <= MOST_COMPLETIONS:
            raise bad_request(f"prompt must hold 1 to {MOST_COMPLETIONS} prompts, got {len(several)}", "prompt")
        return [self._ids(one, asked.add_special_tokens) for one in several]

    def _ids(self, prompt: object, add_special_tokens: bool) -> I32:
        if isinstance(prompt, int):
            raise bad_request("prompt mixes token ids with other prompts; give one list of ids each", "prompt")
        ids: Any = prompt
        if isinstance(prompt, str):
            ids = self._served.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        if not ids:
            raise bad_request("a prompt is empty; there is nothing to continue", "prompt")
        return np.array(ids, dtype=np.int32)

    def _check_room(self, prompts: list[I32], max_tokens: int) -> None:
        longest = max(prompt.size for prompt in prompts)
        limit = self._served.context_length
        if longest + max_tokens > limit:
            raise bad_request(
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{longest + max_tokens} tokens ({longest} in the prompt, {max_tokens} in the completion). "
                "Please reduce the length of the prompt or max_tokens.",
                "prompt",
            )


def _rules(asked: CompletionsBody, stops: tuple[str, ...]) -> TextRules:
    return TextRules(
        stops=stops,
        include_stop=bool(asked.include_stop_str_in_output),
        skip_special_tokens=asked.skip_special_tokens is not False,
    )
