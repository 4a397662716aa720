"""A server that answers as vLLM 0.32.0 was recorded to (docs/design/vllm_protocol.md); it may lack what it is told to.

It samples nothing: token n of a completion is n, with the logprob that its settings ask for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from tests import tiny
from tests.engines.vllm import rig

Handler = Any


class Settings(msgspec.Struct, kw_only=True):
    """What it was started with; the defaults lack nothing."""

    scale_out: bool = True
    completions: bool = True
    dev_mode: bool = True
    processed_logprobs: bool = True
    context_length: int = rig.CONTEXT
    other_tokenizer: bool = False
    tokenizes: bool = True
    paused: bool = False
    adapters: bool = True
    adapters_at_run_time: bool = True
    transfer_backend: str = ""
    label: str = "default"
    no_choices: bool = False
    reload_fails: bool = False
    resets: int = 0
    """How many requests for completions are cut off."""
    refused: dict[str, int] = {}
    """Path of a change -> how often it is refused, undone."""
    cut_off: dict[str, int] = {}
    """Path of a change -> how often it is done, and the answer lost."""
    restarts_at: str = ""
    """Path of a change in the middle of which the server is killed, and started again at once."""


class StandIn:
    """One server. ``calls`` has every request that changes it, in order; ``reads`` counts the others by path."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.calls: list[str] = []
        self.reads: Counter[str] = Counter()
        self.asked: list[dict[str, Any]] = []
        self.stands_still = False
        self.url = ""
        self._tokenizer = tiny.tokenizer()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[StandIn]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield self
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if await request.read() else {}
        path = request.path
        if path in ("/inference/v1/generate", "/v1/completions"):
            if self.settings.paused:
                await asyncio.sleep(2.0)
            return self._complete(request, path, body)
        if path in CHANGES:
            return self._change(request, body)
        self.reads[path] += 1
        answers: dict[str, Any] = {
            "/health": dict,
            "/v1/models": self._models,
            "/tokenize": lambda: {"tokens": self._tokens(body["prompt"])},
            "/weight_info": lambda: {"weight_version": self.settings.label},
            "/server_info": self._info,
            "/get_world_size": lambda: {"world_size": 1},
        }
        if path == "/tokenize" and not self.settings.tokenizes:
            del answers[path]
        if path not in answers or (path in ("/weight_info", "/server_info") and not self.settings.dev_mode):
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response(answers[path]())

    def _models(self) -> dict[str, Any]:
        model = {"id": "m", "root": "/no/folder/here", "parent": None, "max_model_len": self.settings.context_length}
        return {"object": "list", "data": [model]}

    def _tokens(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return ids[::-1] if self.settings.other_tokenizer else ids

    def _info(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "vllm_config": {
                "lora_config": {"max_lora_rank": 8} if settings.adapters else None,
                "weight_transfer_config": {"backend": settings.transfer_backend} if settings.transfer_backend else None,
            },
            "vllm_env": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": settings.adapters_at_run_time},
        }

    def _complete(self, request: web.Request, path: str, body: dict[str, Any]) -> web.Response:
        closed = not (self.settings.scale_out if path.startswith("/inf") else self.settings.completions)
        if closed:
            message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
            return _error(message, "PermissionDeniedError", 403)
        if not body:
            return _error("1 validation error", "Bad Request", 400)
        self.asked.append(body)
        if self.settings.resets:
            self.settings.resets -= 1
            assert request.transport
            request.transport.abort()
            return web.Response()
        count = body.get("sampling_params", body)["max_tokens"]
        ids, logprobs = list(range(count)), [0.0 if self.settings.processed_logprobs else -2.5] * count
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "token_ids": ids}
        if path == "/v1/completions":
            choice["logprobs"] = {"token_logprobs": logprobs}
        else:
            choice["logprobs"] = {
                "content": [{"token_id": i, "logprob": p} for i, p in zip(ids, logprobs, strict=True)]
            }
            choice["weight_versions"] = [{"version": self.settings.label, "start": 0, "end": count}]
        return web.json_response(
            {"choices": [] if self.settings.no_choices else [choice], "usage": {"prompt_tokens_details": None}}
        )

    def _change(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        path = request.path
        self.calls.append(path + (f"?{request.query_string}" if request.query_string else ""))
        if self._counted(self.settings.refused, path):
            return _error("not now", "InternalServerError", 500)
        if self._counted(self.settings.cut_off, path):
            assert request.transport
            request.transport.abort()
        if path == self.settings.restarts_at:
            self.settings.restarts_at, self.settings.label, self.stands_still = "", "default", False
            assert request.transport
            request.transport.abort()
        if path in ("/pause", "/resume"):
            self.stands_still = path == "/pause"
        if path == "/update_weight_version":
            self.settings.label = body["new_version"]
        if path == "/collective_rpc":
            self.calls[-1] += f" {body['kwargs']['weights_path']}"
            if self.settings.reload_fails and "start" not in body["kwargs"]["weights_path"]:
                return _error("Call to collective_rpc method failed: no such folder", "InternalServerError", 500)
        return web.json_response({"success": True})

    @staticmethod
    def _counted(left: dict[str, int], path: str) -> bool:
        left[path] = left.get(path, 0) - 1
        return left[path] >= 0


CHANGES = {
    "/pause",
    "/resume",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/update_weight_version",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/start_weight_update",
    "/update_weights",
    "/finish_weight_update",
    "/init_weight_transfer_engine",
    "/shutdown_weight_transfer_engine",
}


def _error(message: str, kind: str, status: int) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": kind, "param": None, "code": status}}, status=status
    )
