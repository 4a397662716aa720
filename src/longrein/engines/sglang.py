"""SGLang's native API: token ids in, token ids and logprobs out, weights from disk.

Sources: docs.sglang.io "SGLang Native APIs" and "SGLang for RL Systems"; ``srt/managers/io_struct.py`` and
``srt/entrypoints/http_server.py`` of sgl-project/sglang. No SGLang could be run where this was written.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import aiohttp
import msgspec
import numpy as np

from longrein.engines.base import EngineInfo, EngineRequest
from longrein.engines.vllm.labels import version_of
from longrein.engines.vllm.model import model_facts
from longrein.engines.vllm.urls import server_urls
from longrein.errors import ContextLengthError, EngineError, EngineRequestError, EngineUnreachableError
from longrein.types import Completion, FinishReason, Sampling

Body = TypeVar("Body")
ABORT_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 20.0


class _Finish(msgspec.Struct, frozen=True):
    type: str
    message: str = ""


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: _Finish
    weight_version: str
    output_token_logprobs: list[tuple[float, int, Any]]
    """Logprob, token id, and its text where that was asked for."""
    cached_tokens: int = 0


class _Generated(msgspec.Struct, frozen=True):
    output_ids: list[int]
    meta_info: _Meta


class _ModelInfo(msgspec.Struct, frozen=True):
    weight_version: str


class SglangEngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where an SGLang server listens. Picklable; an :class:`~longrein.engines.base.EngineSpec`."""

    url: str
    model: str
    """Folder or hub id of the model that it must serve."""
    context_length: int
    """Tokens of prompt and completion that the run needs; the server's ``--context-length`` must be as large."""

    async def connect(self) -> SglangEngine:
        """Open a client, once the server has shown that it returns ids with their logprobs.

        Raises:
            EngineError: nothing answers, or not as SGLang does.
        """
        facts = model_facts(self.model)
        info = EngineInfo(model=self.model, context_length=self.context_length, vocab_size=facts.vocab_size)
        engine = SglangEngine(server_urls(self.url)[0], info, aiohttp.ClientSession())
        probe = np.array(facts.probe_ids, dtype=np.int32)
        try:
            await engine.generate(
                EngineRequest(
                    request_id="probe", conversation_id="probe", prompt_ids=probe, sampling=Sampling(max_tokens=1)
                )
            )
        except BaseException:
            await engine.close()
            raise
        return engine


class SglangEngine:
    """An async client of one SGLang server; an :class:`~longrein.engines.base.Engine`.

    Its logprobs are those after temperature and before any truncation, so truncated sampling is refused.
    """

    def __init__(self, url: str, info: EngineInfo, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._info = info
        self._session = session
        self._aborts: set[asyncio.Task[None]] = set()

    async def info(self) -> EngineInfo:
        """What the run said of the model."""
        return self._info

    async def generate(self, request: EngineRequest) -> Completion:
        """Sample one completion; see :meth:`longrein.engines.base.Engine.generate`.

        SGLang names the weights at the end of a completion alone, so those at its start are asked for.
        """
        body = self._body(request)
        first = version_of((await self._read("GET", "/get_model_info", None, _ModelInfo)).weight_version)
        try:
            found = await self._read("POST", "/generate", body, _Generated)
        except asyncio.CancelledError:
            task = asyncio.ensure_future(self._abort(request.request_id))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)
            raise
        return self._completion(request, found, first)

    async def forget(self, conversation_id: str) -> None:
        """The radix cache drops what was not used for longest on its own."""

    async def close(self) -> None:
        """Close the client; the server lives on."""
        await asyncio.gather(*self._aborts, return_exceptions=True)
        await self._session.close()

    def _body(self, request: EngineRequest) -> dict[str, Any]:
        ids, sampling = request.prompt_ids, request.sampling
        room = self._info.context_length - ids.size
        if ids.size == 0 or int(ids.min()) < 0 or int(ids.max()) >= self._info.vocab_size:
            raise EngineRequestError(
                f"the prompt is empty, or has ids outside the vocabulary of {self._info.vocab_size}"
            )
        if room < 1:
            raise ContextLengthError(f"{ids.size} tokens leave no room in a context of {self._info.context_length}")
        if sampling.temperature and (sampling.top_k or sampling.top_p < 1 or sampling.min_p):
            raise EngineRequestError(
                "SGLang's logprobs leave top_p, top_k and min_p out of account; sample without them"
            )
        params = {
            "max_new_tokens": min(sampling.max_tokens, room),
            "temperature": sampling.temperature,
            "stop": list(sampling.stop),
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,
            "skip_special_tokens": False,
            **({} if sampling.seed is None else {"sampling_seed": sampling.seed % 2**31}),
        }
        return {
            "rid": request.request_id,
            "input_ids": ids.tolist(),
            "sampling_params": params,
            "return_logprob": True,
            # None of the prompt's.
            "logprob_start_len": -1,
            "stream": False,
        }

    def _completion(self, request: EngineRequest, found: _Generated, first: int) -> Completion:
        meta, finish = found.meta_info, found.meta_info.finish_reason
        if finish.type not in ("stop", "length"):
            raise EngineError(
                f"{self._url} ended a completion with {finish.type!r}: {finish.message or 'no reason given'}"
            )
        if [entry[1] for entry in meta.output_token_logprobs] != found.output_ids:
            raise EngineError(f"{self._url} returned logprobs of other tokens than it sampled; is it SGLang?")
        last = version_of(meta.weight_version)
        logprobs = np.array([entry[0] for entry in meta.output_token_logprobs], dtype=np.float32)
        reason: FinishReason = "stop" if finish.type == "stop" else "length"
        return Completion(
            token_ids=np.array(found.output_ids, dtype=np.int32),
            # A greedy token was certain.
            logprobs=logprobs if request.sampling.temperature else np.zeros_like(logprobs),
            finish_reason=reason,
            min_policy_version=min(first, last),
            max_policy_version=max(first, last),
            prefill_tokens=request.prompt_ids.size - meta.cached_tokens,
        )

    async def _abort(self, request_id: str) -> None:
        timeout = aiohttp.ClientTimeout(total=ABORT_TIMEOUT_S)
        try:
            async with self._session.post(f"{self._url}/abort_request", json={"rid": request_id}, timeout=timeout):
                return
        except (aiohttp.ClientError, TimeoutError, OSError):
            # It notices by itself, later, that nobody reads.
            return

    async def _read(self, method: str, path: str, body: dict[str, Any] | None, kind: type[Body]) -> Body:
        where = f"the SGLang server at {self._url}{path}"
        try:
            # Sampling takes as long as it takes; whoever waits for it bounds it.
            timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S if method == "GET" else None, sock_connect=10.0)
            async with self._session.request(method, self._url + path, json=body, timeout=timeout) as answer:
                data = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnreachableError(f"no answer from {where} ({type(error).__name__}: {error})") from error
        if answer.status == 400:
            raise EngineRequestError(f"{where} refused the request: {data[:500].decode(errors='replace')}")
        if answer.status != 200:
            raise EngineError(f"{where} answered {answer.status}: {data[:500].decode(errors='replace')}")
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise EngineError(f"{where} does not answer as SGLang does: {error}") from error
