"""``/tokenize`` and ``/detokenize`` (vLLM 0.32, ``serve/tokenize``)."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from longrein.engines.render import ChatRenderer
from longrein.errors import GatewayRequestError, RenderError
from longrein.gateway.dialect import Arrival
from longrein.gateway.dialects.chat import ChatDialect
from longrein.gateway.exchange import Exchange
from longrein.serve.bodies import TokenId, read_body
from longrein.serve.refusals import bad_request
from longrein.serve.served import ServedModel


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """A text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Its ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Ids."""

    tokens: list[TokenId]
    model: str | None = None


class Tokenizing:
    """Every method answers one route."""

    def __init__(self, served: ServedModel, renderer: ChatRenderer) -> None:
        self._served = served
        self._renderer = renderer

    async def tokenize(self, exchange: Exchange, body: bytes) -> None:
        """``POST /tokenize``: a text by the tokenizer, a conversation as the chat routes write it."""
        asked = read_body(TokenizeBody, body)
        self._served.check_name(asked.model)
        ids = self._ids(asked, body)
        answer = TokenizeAnswer(
            count=len(ids),
            max_model_len=self._served.context_length,
            tokens=ids,
            token_strs=self._served.tokenizer.convert_ids_to_tokens(ids) if asked.return_token_strs else None,
        )
        await exchange.send_json(200, msgspec.json.encode(answer))

    async def detokenize(self, exchange: Exchange, body: bytes) -> None:
        """``POST /detokenize``: special tokens are shown."""
        asked = read_body(DetokenizeBody, body)
        self._served.check_name(asked.model)
        if any(token >= self._served.vocab_size for token in asked.tokens):
            raise bad_request(f"a token id is outside the model's vocabulary of {self._served.vocab_size}", "tokens")
        text = self._renderer.decode(np.array(asked.tokens, dtype=np.int32))
        await exchange.send_json(200, msgspec.json.encode({"prompt": text}))

    def _ids(self, asked: TokenizeBody, body: bytes) -> list[int]:
        if asked.prompt is not None:
            return self._served.tokenizer.encode(asked.prompt, add_special_tokens=asked.add_special_tokens is not False)
        if asked.messages is None:
            raise bad_request("give a prompt, or messages", "prompt")
        if not asked.add_generation_prompt:
            raise bad_request("conversations are written with the generation prompt only", "add_generation_prompt")
        request = ChatDialect().decode(Arrival(path="/v1/chat/completions", body=body))
        try:
            return self._renderer.render(request.messages, request.tools).tolist()
        except RenderError as error:
            raise GatewayRequestError(str(error), status=400, code="messages") from error
