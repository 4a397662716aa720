"""Engines for Longrein's gateway in the benchmark: the canned one over HTTP, and one inside the process."""

from __future__ import annotations

import aiohttp
import msgspec
import numpy as np

from longrein.engines.base import EngineInfo, EngineRequest
from longrein.types import Completion

CONTEXT_LENGTH = 200_000


class _Logprob(msgspec.Struct, frozen=True):
    logprob: float


class _Logprobs(msgspec.Struct, frozen=True):
    content: list[_Logprob]


class _Choice(msgspec.Struct, frozen=True):
    token_ids: list[int]
    logprobs: _Logprobs


class _Generated(msgspec.Struct, frozen=True):
    choices: list[_Choice]


class _Base:
    """What is the same for both."""

    def __init__(self, vocab_size: int) -> None:
        self._info = EngineInfo(model="policy", context_length=CONTEXT_LENGTH, vocab_size=vocab_size)

    async def info(self) -> EngineInfo:
        return self._info


class _Sent(msgspec.Struct, frozen=True):
    prompt_ids: np.ndarray
    text: bytes
    """The ids as JSON, without brackets."""


_NOTHING = _Sent(prompt_ids=np.zeros(0, np.int32), text=b"")


class HttpEngine(_Base):
    """vLLM's ``/inference/v1/generate`` by aiohttp's client and msgspec.

    Of each conversation the latest prompt is kept as it was written, so that only what is new need be written.
    """

    def __init__(self, url: str, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self._url = f"{url}/inference/v1/generate"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._decoder = msgspec.json.Decoder(_Generated)
        self._sent: dict[str, _Sent] = {}

    async def generate(self, request: EngineRequest) -> Completion:
        sampling = request.sampling
        params = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature, "logprobs": 1}
        params["stop_token_ids"] = sampling.stop_token_ids
        head = msgspec.json.encode({"model": "policy", "sampling_params": params})
        body = b'%b,"token_ids":[%b]}' % (head[:-1], self._written(request))
        async with self._session.post(self._url, data=body, headers={"content-type": "application/json"}) as response:
            response.raise_for_status()
            [choice] = self._decoder.decode(await response.read()).choices
        logprobs = np.fromiter((entry.logprob for entry in choice.logprobs.content), np.float32, len(choice.token_ids))
        return _completion(np.asarray(choice.token_ids, np.int32), logprobs)

    async def forget(self, conversation_id: str) -> None:
        self._sent.pop(conversation_id, None)

    async def close(self) -> None:
        await self._session.close()

    def _written(self, request: EngineRequest) -> bytes:
        prompt = request.prompt_ids
        before = self._sent.get(request.conversation_id, _NOTHING)
        size = before.prompt_ids.size
        if not np.array_equal(prompt[:size], before.prompt_ids):
            before, size = _NOTHING, 0
        new = msgspec.json.encode(prompt[size:].tolist())[1:-1]
        text = b",".join(part for part in (before.text, new) if part)
        self._sent[request.conversation_id] = _Sent(prompt_ids=prompt, text=text)
        return text


class InProcessEngine(_Base):
    """Says one completion again and again."""

    def __init__(self, token_ids: list[int], vocab_size: int) -> None:
        super().__init__(vocab_size)
        ids = np.asarray(token_ids, np.int32)
        self._completion = _completion(ids, np.full(ids.size, -0.5, np.float32))

    async def generate(self, request: EngineRequest) -> Completion:
        return self._completion

    async def forget(self, conversation_id: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing to close."""


def _completion(token_ids: np.ndarray, logprobs: np.ndarray) -> Completion:
    return Completion(
        token_ids=token_ids, logprobs=logprobs, finish_reason="stop", min_policy_version=1, max_policy_version=1
    )
