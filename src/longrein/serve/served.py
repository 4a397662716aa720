"""What the server knows of its model."""

from __future__ import annotations

import time
from typing import Protocol

import msgspec

from longrein.errors import GatewayRequestError
from longrein.serve.text import Decoder


class ServedTokenizer(Decoder, Protocol):
    """The part of a ``transformers`` tokenizer that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""
        ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Each id as the vocabulary writes it."""
        ...


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model, under one or more names."""

    names: tuple[str, ...]
    """What requests may call it; answers use the first."""
    folder: str
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    """What ends a completion unless the request says ``ignore_eos``."""
    tokenizer: ServedTokenizer
    created_at_s: int = msgspec.field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """What answers call it."""
        return self.names[0]

    def check_name(self, name: str | None) -> None:
        """Raise :class:`GatewayRequestError` (404) for another model's name; none at all is this one's."""
        if name and name not in self.names:
            raise GatewayRequestError(
                f"The model `{name}` does not exist. Valid aliases: {', '.join(self.names)}.", status=404, code="model"
            )


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``/v1/models``, with vLLM's fields."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "longrein"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: tuple[str, ...] = ()


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``/v1/models``."""

    object: str = "list"
    data: tuple[ModelCard, ...]


def model_list(served: ServedModel) -> ModelList:
    """Every name of the model."""
    return ModelList(
        data=tuple(
            ModelCard(id=name, created=served.created_at_s, root=served.folder, max_model_len=served.context_length)
            for name in served.names
        )
    )
