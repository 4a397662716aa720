"""Which path is served by what, beside the agents' dialects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from longrein.errors import GatewayRequestError
from longrein.gateway.exchange import Exchange
from longrein.serve.completions import CompletionsRoute
from longrein.serve.control import Control
from longrein.serve.pausing import PausableEngine
from longrein.serve.served import ServedModel, model_list
from longrein.serve.token_in import GenerateRoute
from longrein.serve.tokenizing import Tokenizing

Handler = Callable[[Exchange, bytes], Awaitable[None]]
VLLM_VERSION = "0.32.0"
"""The version whose routes these are; clients choose their protocol by it."""

SERVER_INFO = {
    "vllm_config": {
        "model_config": {"logprobs_mode": "processed_logprobs"},
        "lora_config": None,
        "weight_transfer_config": None,
    },
    "vllm_env": {},
}


class TokenRoute(msgspec.Struct, frozen=True, kw_only=True):
    """What serves one path.

    Raises :class:`GatewayRequestError` for what it refuses, :class:`~longrein.errors.EngineError` where the engine is
    gone.
    """

    method: Literal["GET", "POST"]
    handle: Handler

    def check_method(self, method: str) -> None:
        """Raises :class:`GatewayRequestError` (405) for another method."""
        if method != self.method and (method, self.method) != ("HEAD", "GET"):
            raise GatewayRequestError(f"use {self.method} here", status=405, code="")


class About:
    """The routes that tell of the server; every method answers one."""

    def __init__(self, served: ServedModel, engine: PausableEngine, longrein_version: str) -> None:
        self._served = served
        self._engine = engine
        self._version = {"version": VLLM_VERSION, "longrein": longrein_version}

    async def health(self, exchange: Exchange, body: bytes) -> None:
        """``GET /health``: an empty 200, or 503 when the engine is gone."""
        await self._engine.info()
        await exchange.send_json(200, b"")

    async def version(self, exchange: Exchange, body: bytes) -> None:
        """``GET /version``: of the protocol, and ours."""
        await exchange.send_json(200, msgspec.json.encode(self._version))

    async def server_info(self, exchange: Exchange, body: bytes) -> None:
        """``GET /server_info``: the settings that trainers look for; logprobs are of the sampled distribution."""
        await exchange.send_json(200, msgspec.json.encode(SERVER_INFO))

    async def models(self, exchange: Exchange, body: bytes) -> None:
        """``GET /v1/models``."""
        await exchange.send_json(200, msgspec.json.encode(model_list(self._served)))


def token_routes(
    about: About, generate: GenerateRoute, completions: CompletionsRoute, control: Control, tokenizing: Tokenizing
) -> dict[str, TokenRoute]:
    """Path -> route."""
    get: dict[str, Handler] = {
        "/health": about.health,
        "/ping": about.health,
        "/version": about.version,
        "/server_info": about.server_info,
        "/v1/models": about.models,
        "/is_paused": control.is_paused,
        "/weight_info": control.weight_info,
    }
    post: dict[str, Handler] = {
        "/inference/v1/generate": generate,
        "/v1/completions": completions,
        "/pause": control.pause,
        "/resume": control.resume,
        "/abort_requests": control.abort,
        "/collective_rpc": control.collective_rpc,
        "/update_weight_version": control.update_weight_version,
        "/reset_prefix_cache": control.reset_prefix_cache,
        "/tokenize": tokenizing.tokenize,
        "/detokenize": tokenizing.detokenize,
    }
    return {
        **{path: TokenRoute(method="GET", handle=handle) for path, handle in get.items()},
        **{path: TokenRoute(method="POST", handle=handle) for path, handle in post.items()},
    }
