"""What is measured: our engine and its peers, each told to sample for a batch of prompts and to say when it is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from engine_bench.clock import tree_cpu_s
from longrein.engines.base import Engine, EngineRequest
from longrein.engines.local.config import LocalEngineConfig
from longrein.engines.local.process import LocalEngineProcess
from longrein.types import I32, Sampling


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One completion to sample at temperature 1; it never ends by itself."""

    conversation_id: str
    prompt_ids: I32
    max_tokens: int


class Contender(Protocol):
    """An engine under test. Starting it is measured too, so it is made inside the clock."""

    caches_prefixes: bool

    def sample(self, calls: Sequence[Call]) -> list[I32]:
        """Sample all at once; the completions' ids, each of ``max_tokens``."""
        ...

    def cpu_s(self) -> float:
        """CPU seconds that it has used so far."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a contender is started with."""

    model: Path
    dtype: str
    threads: int
    context_length: int


class Ours:
    """The embedded engine, in its own process, asked over its socket."""

    caches_prefixes = True

    def __init__(self, setup: Setup) -> None:
        self._process = LocalEngineProcess(
            LocalEngineConfig(
                model=str(setup.model),
                dtype=cast(Any, setup.dtype),
                threads=setup.threads,
                context_length=setup.context_length,
                # 16 prompts of 4000 tokens, as vLLM's cache holds them too.
                cache_tokens=131072,
            )
        )
        self._process.start()
        self._loop = asyncio.new_event_loop()
        self._engine: Engine = self._loop.run_until_complete(self._process.spec.connect())
        self._asked = 0

    def sample(self, calls: Sequence[Call]) -> list[I32]:
        return self._loop.run_until_complete(self._sample(calls))

    async def _sample(self, calls: Sequence[Call]) -> list[I32]:
        done = await asyncio.gather(*(self._engine.generate(self._request(call)) for call in calls))
        return [completion.token_ids for completion in done]

    def _request(self, call: Call) -> EngineRequest:
        self._asked += 1
        return EngineRequest(
            request_id=str(self._asked),
            conversation_id=call.conversation_id,
            prompt_ids=call.prompt_ids,
            sampling=Sampling(max_tokens=call.max_tokens, temperature=1.0, seed=self._asked),
        )

    def cpu_s(self) -> float:
        return tree_cpu_s(self._process.pid)

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.close())
        self._process.stop()
        self._loop.close()


class _InThisProcess:
    caches_prefixes = False

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        dtype = getattr(torch, setup.dtype)
        self._model: Any = cast(Any, AutoModelForCausalLM).from_pretrained(setup.model, dtype=dtype).eval()

    def cpu_s(self) -> float:
        return time.process_time()

    def close(self) -> None:
        del self._model


class PlainGenerate(_InThisProcess):
    """transformers' ``generate`` on a left-padded batch."""

    @torch.inference_mode()
    def sample(self, calls: Sequence[Call]) -> list[I32]:
        length = max(call.prompt_ids.size for call in calls)
        ids = torch.zeros(len(calls), length, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for index, call in enumerate(calls):
            ids[index, length - call.prompt_ids.size :] = torch.as_tensor(call.prompt_ids.astype(np.int64))
            mask[index, length - call.prompt_ids.size :] = 1
        tokens = calls[0].max_tokens
        out = self._model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )
        return [row[length:].to(torch.int32).numpy() for row in out]


class ContinuousBatching(_InThisProcess):
    """transformers' ``generate_batch``, with the settings that ran fastest on a CPU (docs/engines.md)."""

    def sample(self, calls: Sequence[Call]) -> list[I32]:
        # -1: no token ends a completion.
        config = GenerationConfig(
            max_new_tokens=calls[0].max_tokens, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0
        )
        blocks = sum(-(-(call.prompt_ids.size + call.max_tokens) // 32) + 1 for call in calls)
        out = self._model.generate_batch(
            inputs=[call.prompt_ids.tolist() for call in calls],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=max(64, blocks), page_size=32, max_batch_tokens=256
            ),
            progress_bar=False,
        )
        ordered = sorted(out.values(), key=lambda one: int(str(one.request_id).rsplit("_", 1)[-1]))
        return [np.asarray(one.generated_tokens, dtype=np.int32) for one in ordered]
