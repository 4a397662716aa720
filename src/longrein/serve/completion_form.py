"""How ``/v1/completions`` writes its answers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import msgspec

from longrein.engines.base import SampledToken
from longrein.serve.generation import Delta, Finish
from longrein.serve.served import ServedModel
from longrein.serve.stop_reason import stop_reason_of
from longrein.serve.text import TextRules, TextStream
from longrein.serve.usage import StreamOptions, Usage, usage_of
from longrein.types import I32, Sampling


class FormSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the request decides about its answer."""

    request_id: str
    sampling: Sampling
    prompts: tuple[I32, ...]
    choices: int
    rules: TextRules
    logprobs: bool
    return_token_ids: bool
    tokens_as_ids: bool
    """Write tokens as ``token_id:N``, since not every one is text."""
    stream_options: StreamOptions


class Logprobs(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's four columns; the candidates beside a sampled token are itself alone."""

    text_offset: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    tokens: tuple[str, ...]
    top_logprobs: tuple[dict[str, float], ...]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or what is new of it."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Finish | None
    stop_reason: int | str | None
    prompt_token_ids: list[int] | None
    token_ids: tuple[int, ...] | None


class CompletionAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole answer, or one event of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage | None = None


class _ChoiceSoFar:
    """One choice of a stream."""

    def __init__(self, settings: FormSettings, served: ServedModel) -> None:
        self.tokens: list[SampledToken] = []
        self.text = TextStream(served.tokenizer, settings.rules)
        self.text_offset = 0
        self.prompt_told = False


class CompletionForm:
    """Writes the answer to one request."""

    def __init__(self, settings: FormSettings, served: ServedModel) -> None:
        self.answer_id = f"cmpl-{settings.request_id or secrets.token_hex(16)}"
        self._settings = settings
        self._served = served
        self._created = int(time.time())
        count = len(settings.prompts) * settings.choices
        self._so_far = [_ChoiceSoFar(settings, served) for _ in range(count)]

    def whole(self, deltas: tuple[Delta, ...]) -> bytes:
        """See :class:`~longrein.serve.answers.AnswerForm`."""
        choices = tuple(map(self._choice, deltas))
        return self._encode(
            choices, self._usage(sum(delta.cached_tokens for delta in deltas[:: self._settings.choices]))
        )

    def chunk(self, delta: Delta) -> bytes:
        """See :class:`~longrein.serve.answers.AnswerForm`."""
        choice = self._choice(delta)
        continuous = self._settings.stream_options.continuous_usage_stats
        usage = usage_of(self._prompt(delta.index).size, len(self._so_far[delta.index].tokens))
        return self._encode((choice,), usage if continuous else None)

    def closing(self) -> tuple[bytes, ...]:
        """See :class:`~longrein.serve.answers.AnswerForm`."""
        return (self._encode((), self._usage()),) if self._settings.stream_options.include_usage else ()

    def _encode(self, choices: tuple[Choice, ...], usage: Usage | None) -> bytes:
        return msgspec.json.encode(
            CompletionAnswer(
                id=self.answer_id,
                object="text_completion",
                created=self._created,
                model=self._served.name,
                choices=choices,
                usage=usage,
            )
        )

    def _choice(self, delta: Delta) -> Choice:
        settings, so_far = self._settings, self._so_far[delta.index]
        so_far.tokens += delta.tokens
        text = so_far.text.push([token.token_id for token in delta.tokens])
        if delta.finish_reason is not None:
            text += so_far.text.finish()
        prompt = None if so_far.prompt_told or not settings.return_token_ids else self._prompt(delta.index).tolist()
        so_far.prompt_told = True
        return Choice(
            index=delta.index,
            text=text,
            logprobs=self._logprobs(delta.tokens, so_far) if settings.logprobs else None,
            finish_reason=delta.finish_reason,
            stop_reason=stop_reason_of(delta.finish_reason, so_far.tokens, settings.sampling, self._served),
            prompt_token_ids=prompt,
            token_ids=tuple(token.token_id for token in delta.tokens) if settings.return_token_ids else None,
        )

    def _logprobs(self, tokens: Sequence[SampledToken], so_far: _ChoiceSoFar) -> Logprobs:
        names = tuple(map(self._name, tokens))
        offsets: list[int] = []
        for name in names:
            offsets.append(so_far.text_offset)
            so_far.text_offset += len(name)
        values = tuple(token.logprob for token in tokens)
        return Logprobs(
            text_offset=tuple(offsets),
            token_logprobs=values,
            tokens=names,
            top_logprobs=tuple({name: value} for name, value in zip(names, values, strict=True)),
        )

    def _name(self, token: SampledToken) -> str:
        if self._settings.tokens_as_ids:
            return f"token_id:{token.token_id}"
        return self._served.tokenizer.decode([token.token_id], skip_special_tokens=False)

    def _usage(self, cached_tokens: int | None = None) -> Usage:
        prompt_tokens = sum(prompt.size for prompt in self._settings.prompts)
        return usage_of(prompt_tokens, sum(len(choice.tokens) for choice in self._so_far), cached_tokens)

    def _prompt(self, index: int) -> I32:
        return self._settings.prompts[index // self._settings.choices]
