"""What an engine is: token ids in, token ids and logprobs out, each completion stamped with its policy versions."""

from __future__ import annotations

from typing import Protocol

import msgspec

from longrein.types import I32, Completion, Sampling


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway must know of a model before the first request."""

    model: str
    context_length: int
    vocab_size: int


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One completion to sample."""

    request_id: str
    conversation_id: str
    """Requests of one conversation share their KV cache."""
    prompt_ids: I32
    sampling: Sampling


class Engine(Protocol):
    """An engine as the gateway sees it.

    Cancelling the task that awaits :meth:`generate` frees the request at once.
    """

    async def info(self) -> EngineInfo:
        """Describe the model. Raises :class:`~longrein.errors.EngineError` when the engine is gone."""
        ...

    async def generate(self, request: EngineRequest) -> Completion:
        """Sample one completion.

        Raises:
            ContextLengthError: prompt and one new token do not fit in the context.
            EngineRequestError: the request is malformed (empty prompt, ids outside the vocabulary).
            EngineError: the engine failed; the rollout is unscorable.
        """
        ...

    async def forget(self, conversation_id: str) -> None:
        """Free what is cached for a conversation. Unknown ids are ignored."""
        ...

    async def close(self) -> None:
        """Close the client side. The engine itself lives on with its owner."""
        ...


class EngineSpec(Protocol):
    """A picklable description of an engine that a spawned process can connect to."""

    async def connect(self) -> Engine:
        """Raises :class:`~longrein.errors.EngineError` when nothing answers."""
        ...


class WeightReceiver(Protocol):
    """The end of the one-way street: an engine that takes new weights from the trainer's process."""

    def update(self, tensors: object, policy_version: int) -> None:
        """Publish weights and return once the engine samples with them.

        ``tensors`` maps parameter names to torch tensors (``Mapping[str, torch.Tensor]``; typed as ``object``
        because this module is imported where torch is not installed).

        Raises:
            EngineError: the engine is gone or refused them (other names or shapes).
        """
        ...
