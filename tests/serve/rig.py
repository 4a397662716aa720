"""A server before a real embedded engine of a tiny model, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import numpy as np
import pytest
from openai import AsyncOpenAI
from transformers import AutoTokenizer

from longrein.engines.base import EngineRequest
from longrein.engines.local import wire
from longrein.engines.local.client import LocalEngine
from longrein.engines.local.process import LocalEngineProcess
from longrein.engines.render import ChatRenderer
from longrein.errors import ContextLengthError
from longrein.gateway.settings import GatewaySettings
from longrein.serve.served import ServedModel
from longrein.serve.server import ServedEngine, ServeSettings, open_server
from longrein.train.folder_weights import folder_weights
from longrein.types import Sampling

CONTEXT = 512
EOS = 2


class Rig:
    """A server and a client of it, and the engine behind it."""

    def __init__(
        self,
        url: str,
        http: aiohttp.ClientSession,
        process: LocalEngineProcess,
        engine: LocalEngine,
        tokenizer: Any,
    ) -> None:
        self.url = url
        self.http = http
        self.process = process
        self.engine = engine
        self.tokenizer = tokenizer
        self.openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        self.tokens_heard = 0
        """Of streams, by the server."""
        tell = engine._tell

        def count(sampled: wire.Sampled) -> None:
            self.tokens_heard += len(sampled.calls)
            tell(sampled)

        engine._tell = count  # type: ignore[method-assign]

    @property
    def under_way(self) -> int:
        """Requests that the engine has, and has not answered as far as was heard."""
        return len(self.engine._pending)

    async def halt(self) -> None:
        """From here on the engine computes nothing, behind the server's back, and all that it said was heard."""
        await asyncio.to_thread(self.process.pause)
        await self.hear_all()

    async def go_on(self) -> None:
        """The end of :meth:`halt`, where no resume of the server's is."""
        await asyncio.to_thread(self.process.resume)

    async def hear_all(self) -> None:
        """Return once the server has heard what the engine said until now: it answers in order, refusals at once."""
        prompt_ids = np.full(CONTEXT + 1, 5, np.int32)
        sampling = Sampling(max_tokens=1)
        with pytest.raises(ContextLengthError):
            await self.engine.generate(
                EngineRequest(request_id="long", conversation_id="long", prompt_ids=prompt_ids, sampling=sampling)
            )

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        async with self.http.post(self.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path, headers=headers) as answer:
            text = await answer.text()
            return answer.status, await answer.json() if text else None

    async def generate(self, token_ids: list[int], body: Any = None, **sampling: Any) -> Any:
        """The one choice of ``/inference/v1/generate``."""
        params = {"max_tokens": 8, "logprobs": 0, "ignore_eos": True, **sampling}
        status, answer = await self.post(
            "/inference/v1/generate", {"token_ids": token_ids, "sampling_params": params, **(body or {})}
        )
        assert status == 200, answer
        return answer["choices"][0]

    async def reload(self, folder: Path, label: str) -> None:
        rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        assert await self.post("/collective_rpc", rpc) == (200, {"results": [None]})
        answer = {"success": True, "new_version": label}
        assert await self.post("/update_weight_version", {"new_version": label}) == (200, answer)


@asynccontextmanager
async def serving(process: LocalEngineProcess, folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    engine = await process.spec.connect()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    served = ServedModel(
        names=(str(folder), "tiny"),
        folder=str(folder),
        context_length=CONTEXT,
        vocab_size=process.info.vocab_size,
        eos_token_ids=(EOS,),
        tokenizer=tokenizer,
    )
    owned = ServedEngine(engine=engine, receiver=process.weights, switch=process, read_weights=folder_weights)
    gateway = GatewaySettings(context_length=CONTEXT, max_tokens=12)
    renderer = ChatRenderer.of(cast(Any, tokenizer))
    try:
        async with (
            open_server(served, owned, renderer, gateway, ServeSettings(**settings)) as server,
            aiohttp.ClientSession() as http,
        ):
            rig = Rig(server.url, http, process, engine, tokenizer)
            async with rig.openai:
                yield rig
    finally:
        await engine.close()
