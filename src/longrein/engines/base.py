"""What an engine is: token ids in, token ids and logprobs out, each completion stamped with its policy versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class TokenizingEngine(Engine, Protocol):
    """An engine that can say how its own tokenizer reads a text."""

    async def tokenize(self, text: str) -> I32:
        """Ids of a text, no special tokens added, shape ``[n]``. Raises :class:`~longrein.errors.EngineError`."""
        ...


class SampledToken(msgspec.Struct, frozen=True, kw_only=True):
    """One token of a completion, as it was sampled."""

    token_id: int
    logprob: float
    """Of the distribution that it was sampled from, natural log."""
    policy_version: int
    """Of the weights that sampled it."""


OnToken = Callable[[SampledToken], None]
"""Hears of each token; it must not block, nor raise."""


class HeardEngine(Engine, Protocol):
    """An engine that tells of each token at once."""

    async def generate_heard(self, request: EngineRequest, on_token: OnToken) -> Completion:
        """As :meth:`Engine.generate`; ``on_token`` has had every token of the completion before it returns."""
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


class AdapterTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What a LoRA adapter does to one module."""

    rank: int
    scaling: float
    """What ``B @ A`` is multiplied by: ``alpha / rank``, or ``alpha / sqrt(rank)`` with rank-stabilised LoRA."""


class AdapterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter (arXiv 2106.09685): the weight ``W`` of each target becomes ``W + scaling * B @ A``."""

    targets: dict[str, AdapterTarget]
    """By the module's path in the bare model, such as ``model.layers.0.self_attn.q_proj``."""


@runtime_checkable
class AdapterReceiver(WeightReceiver, Protocol):
    """An engine that also takes small adapters, which it adds to the weights of the last :meth:`update`."""

    def update_adapter(self, tensors: object, spec: AdapterSpec, policy_version: int) -> None:
        """Publish an adapter, in place of any earlier one, and return once the engine samples with it.

        ``tensors`` maps ``<module>.lora_A.weight`` to ``[rank, in]`` and ``<module>.lora_B.weight`` to
        ``[out, rank]`` for each target of ``spec``, so that ``B @ A`` has the shape of the module's weight
        (``Mapping[str, torch.Tensor]``, typed as for :meth:`update`).

        Raises:
            EngineError: the engine is gone or refused it (other modules or shapes).
        """
        ...
