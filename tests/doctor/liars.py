"""Engines that lie, each in one way: what the doctor must notice."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from longrein.engines.base import (
    AdapterReceiver,
    AdapterSpec,
    Engine,
    EngineInfo,
    EngineRequest,
    EngineSpec,
    WeightReceiver,
)
from longrein.errors import ContextLengthError, EngineRequestError
from longrein.types import I32, Completion, FinishReason, Sampling


class Through:
    """An honest go-between; each liar changes one thing of it."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    async def info(self) -> EngineInfo:
        return await self.inner.info()

    async def generate(self, request: EngineRequest) -> Completion:
        return await self.inner.generate(request)

    async def forget(self, conversation_id: str) -> None:
        await self.inner.forget(conversation_id)

    async def close(self) -> None:
        await self.inner.close()


class Between(msgspec.Struct, frozen=True):
    """A spec whose engine is put behind another."""

    inner: EngineSpec
    liar: Callable[[Engine], Engine]

    async def connect(self) -> Engine:
        return self.liar(await self.inner.connect())


class UpToTwo(Through):
    """No liar: refuses hotter temperatures than 2, as vLLM does."""

    async def generate(self, request: EngineRequest) -> Completion:
        if request.sampling.temperature > 2:
            raise EngineRequestError(f"temperature must be in [0, 2], got {request.sampling.temperature}")
        return await super().generate(request)


class Resampled(Through):
    """Applies ``changes`` to what was asked for, silently."""

    def __init__(self, inner: Engine, **changes: Any) -> None:
        super().__init__(inner)
        self.changes = changes

    async def generate(self, request: EngineRequest) -> Completion:
        sampling = msgspec.structs.replace(request.sampling, **self.changes)
        return await self.inner.generate(msgspec.structs.replace(request, sampling=sampling))


class Retold(Through):
    """Tells a completion otherwise than it was."""

    def __init__(self, inner: Engine, retell: Callable[[Completion, EngineRequest], Completion]) -> None:
        super().__init__(inner)
        self.retell = retell

    async def generate(self, request: EngineRequest) -> Completion:
        return self.retell(await self.inner.generate(request), request)


class CutsPrompts(Through):
    """Drops the beginning of a prompt that is long."""

    def __init__(self, inner: Engine, kept: int) -> None:
        super().__init__(inner)
        self.kept = kept

    async def generate(self, request: EngineRequest) -> Completion:
        return await self.inner.generate(msgspec.structs.replace(request, prompt_ids=request.prompt_ids[-self.kept :]))


class ServesLess(Through):
    """Refuses prompts that its info promises to take."""

    async def generate(self, request: EngineRequest) -> Completion:
        if request.prompt_ids.size > 500:
            raise ContextLengthError("a prompt of more than 500 tokens")
        return await self.inner.generate(request)


class OtherInfo(Through):
    """Says other things of its model."""

    def __init__(self, inner: Engine, **changes: Any) -> None:
        super().__init__(inner)
        self.changes = changes

    async def info(self) -> EngineInfo:
        return msgspec.structs.replace(await self.inner.info(), **self.changes)


class Tokenizes(Through):
    """Tokenizes by a function."""

    def __init__(self, inner: Engine, encode: Callable[[str], I32]) -> None:
        super().__init__(inner)
        self.encode = encode

    async def tokenize(self, text: str) -> I32:
        return self.encode(text)


class PlainEngine:
    """An engine without cache, batch or process: one forward pass of the library's a token. Honest as it is."""

    def __init__(self, folder: Path, context_length: int = 1024) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.context_length = context_length
        self.known: dict[bytes, np.ndarray] = {}

    async def connect(self) -> Engine:
        return self

    async def info(self) -> EngineInfo:
        return EngineInfo(model="plain", context_length=self.context_length, vocab_size=264)

    def logits(self, ids: I32) -> np.ndarray:
        """Of the next token, float64 ``[vocabulary]``."""
        key = ids.tobytes()
        if key not in self.known:
            with torch.inference_mode():
                said = self.model(torch.as_tensor(ids.astype(np.int64)).unsqueeze(0)).logits[0, -1]
            self.known[key] = said.double().numpy()
        return self.known[key]

    def told(self, ids: I32, sampled: np.ndarray, sampling: Sampling) -> np.ndarray:
        """The logprobs that are reported. ``sampled``: those of the distribution sampled from."""
        return sampled

    async def generate(self, request: EngineRequest) -> Completion:
        sampling, ids, reason = request.sampling, request.prompt_ids, "length"
        if ids.size >= self.context_length:
            raise ContextLengthError("too long")
        rng = np.random.default_rng(sampling.seed)
        logprobs: list[float] = []
        while len(logprobs) < sampling.max_tokens and reason == "length":
            distribution = log_softmax(self.logits(ids) / sampling.temperature)
            token = int(rng.choice(distribution.size, p=np.exp(distribution)))
            logprobs.append(float(self.told(ids, distribution, sampling)[token]))
            ids = np.append(ids, np.int32(token))
            reason: FinishReason = "stop" if token in sampling.stop_token_ids else "length"
        return Completion(
            token_ids=ids[request.prompt_ids.size :],
            logprobs=np.array(logprobs, dtype=np.float32),
            finish_reason=reason,
            min_policy_version=0,
            max_policy_version=0,
            prefill_tokens=request.prompt_ids.size,
        )

    async def forget(self, conversation_id: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is open."""


class Untempered(PlainEngine):
    """Samples after temperature, reports before it."""

    def told(self, ids: I32, sampled: np.ndarray, sampling: Sampling) -> np.ndarray:
        return log_softmax(self.logits(ids))


class TemperatureForgotten(PlainEngine):
    """Samples without the temperature, reports with it."""

    async def generate(self, request: EngineRequest) -> Completion:
        self.asked = request.sampling.temperature
        sampling = msgspec.structs.replace(request.sampling, temperature=1.0)
        return await super().generate(msgspec.structs.replace(request, sampling=sampling))

    def told(self, ids: I32, sampled: np.ndarray, sampling: Sampling) -> np.ndarray:
        return log_softmax(self.logits(ids) / self.asked)


class SilentlyTruncated(PlainEngine):
    """Samples from the most likely tokens, reports what they have among all."""

    def __init__(self, folder: Path, kept: int) -> None:
        super().__init__(folder)
        self.kept = kept

    def logits(self, ids: I32) -> np.ndarray:
        whole = super().logits(ids)
        return np.where(whole >= np.sort(whole)[-self.kept], whole, -math.inf)

    def told(self, ids: I32, sampled: np.ndarray, sampling: Sampling) -> np.ndarray:
        return log_softmax(super().logits(ids) / sampling.temperature)


class Penalises(PlainEngine):
    """Makes what was said before less likely (CTRL, arXiv 1909.05858), and reports that honestly."""

    def logits(self, ids: I32) -> np.ndarray:
        whole = super().logits(ids).copy()
        said = np.unique(ids)
        whole[said] = np.where(whole[said] > 0, whole[said] / 1.2, whole[said] * 1.2)
        return whole


class Restless(PlainEngine):
    """Never computes the same twice."""

    def logits(self, ids: I32) -> np.ndarray:
        return super().logits(ids) * np.random.default_rng().uniform(0.5, 2.0)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


class Deaf:
    """A receiver of weights that takes none."""

    def update(self, tensors: object, policy_version: int) -> None:
        """Nothing."""


class TakesOnce:
    """A receiver that takes the first weights only, and new version numbers always."""

    def __init__(self, inner: WeightReceiver) -> None:
        self.inner = inner
        self.first: object = None

    def update(self, tensors: object, policy_version: int) -> None:
        self.first = self.first or tensors
        self.inner.update(self.first, policy_version)


class Misnumbers:
    """A receiver that passes on another version number."""

    def __init__(self, inner: WeightReceiver) -> None:
        self.inner = inner

    def update(self, tensors: object, policy_version: int) -> None:
        self.inner.update(tensors, policy_version + 5)


class TakesAdapters:
    """An honest go-between; each liar changes what becomes of an adapter."""

    def __init__(self, inner: AdapterReceiver) -> None:
        self.inner = inner
        self.whole: object = None

    def update(self, tensors: object, policy_version: int) -> None:
        self.whole = tensors
        self.inner.update(tensors, policy_version)

    def update_adapter(self, tensors: object, spec: AdapterSpec, policy_version: int) -> None:
        self.inner.update_adapter(tensors, spec, policy_version)


class DeafToAdapters(TakesAdapters):
    """Counts an adapter as a version, and samples without it."""

    def update_adapter(self, tensors: object, spec: AdapterSpec, policy_version: int) -> None:
        self.inner.update(self.whole, policy_version)


class Unscaled(TakesAdapters):
    """Adds ``B @ A`` as it is."""

    def update_adapter(self, tensors: object, spec: AdapterSpec, policy_version: int) -> None:
        targets = {name: msgspec.structs.replace(one, scaling=1.0) for name, one in spec.targets.items()}
        self.inner.update_adapter(tensors, AdapterSpec(targets=targets), policy_version)


class ForgetsTheVersion(TakesAdapters):
    """Gives an adapter the version after the next."""

    def update_adapter(self, tensors: object, spec: AdapterSpec, policy_version: int) -> None:
        self.inner.update_adapter(tensors, spec, policy_version + 1)
