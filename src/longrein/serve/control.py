"""The routes by which a trainer rules the server (vLLM 0.32, ``entrypoints/rl`` and ``entrypoints/serve/dev``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args
from urllib.parse import parse_qs

import msgspec

from longrein.gateway.exchange import Exchange
from longrein.serve.bodies import read_body
from longrein.serve.pausing import PausableEngine, PauseMode
from longrein.serve.refusals import bad_request
from longrein.serve.versions import VersionLabels
from longrein.serve.weights import ServedWeights


class RpcBody(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a method on the engine's worker."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None


class VersionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A label for the newest weights."""

    new_version: str


class Control:
    """Every method answers one route."""

    def __init__(self, engine: PausableEngine, weights: ServedWeights, labels: VersionLabels) -> None:
        self._engine = engine
        self._weights = weights
        self._labels = labels

    async def pause(self, exchange: Exchange, body: bytes) -> None:
        """``POST /pause?mode=abort|wait|keep``; returns once it is so."""
        mode = parse_qs(exchange.query).get("mode", ["abort"])[0]
        if mode not in get_args(PauseMode):
            raise bad_request(f"mode={mode}: must be one of {', '.join(get_args(PauseMode))}", "mode")
        await self._engine.pause(cast(PauseMode, mode))
        await _send(exchange, {"status": "paused"})

    async def resume(self, exchange: Exchange, body: bytes) -> None:
        """``POST /resume``."""
        await self._engine.resume()
        await _send(exchange, {"status": "resumed"})

    async def is_paused(self, exchange: Exchange, body: bytes) -> None:
        """``GET /is_paused``."""
        await _send(exchange, {"is_paused": self._engine.is_paused})

    async def abort(self, exchange: Exchange, body: bytes) -> None:
        """``POST /abort_requests``: cut off everything that runs."""
        await _send(exchange, {"status": "aborted", "aborted": self._engine.abort()})

    async def collective_rpc(self, exchange: Exchange, body: bytes) -> None:
        """``POST /collective_rpc`` for the one method that there is: ``reload_weights``."""
        call = read_body(RpcBody, body)
        if call.method != "reload_weights":
            raise bad_request(f"method {call.method!r} is unknown here; this server has reload_weights", "method")
        path = call.kwargs.get("weights_path") or (call.args[0] if call.args else None)
        if not isinstance(path, str) or not path:
            raise bad_request("reload_weights needs kwargs.weights_path: a model folder on this machine", "kwargs")
        await self._weights.reload(Path(path))
        await _send(exchange, {"results": [None]})

    async def update_weight_version(self, exchange: Exchange, body: bytes) -> None:
        """``POST /update_weight_version``: name the newest weights."""
        label = read_body(VersionBody, body).new_version
        self._labels.rename(label)
        await _send(exchange, {"success": True, "new_version": label})

    async def weight_info(self, exchange: Exchange, body: bytes) -> None:
        """``GET /weight_info``: the newest weights' name."""
        await _send(exchange, {"weight_version": self._labels.label})

    async def reset_prefix_cache(self, exchange: Exchange, body: bytes) -> None:
        """``POST /reset_prefix_cache``."""
        await self._engine.clear_cache()
        await _send(exchange, {"success": True})


async def _send(exchange: Exchange, answer: dict[str, Any]) -> None:
    await exchange.send_json(200, msgspec.json.encode(answer))
