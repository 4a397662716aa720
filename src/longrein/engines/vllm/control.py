"""One server as the owner of the weights sees it: plain calls, each bounded in time."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self

import httpx
import msgspec

from longrein.engines.vllm.answers import Answer
from longrein.engines.vllm.checks import ADAPTER, Served, read_served
from longrein.engines.vllm.deadline import Deadline
from longrein.engines.vllm.urls import authorization
from longrein.errors import ConfigError, EngineError, EngineUnreachableError

PauseMode = Literal["keep", "wait"]
"""``keep``: requests in flight stand still and go on with the new weights. ``wait``: they end with the old ones."""


class ControlTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long one call may take."""

    health_s: float = 20.0
    """A call that takes no time."""
    update_s: float = 300.0
    """Loading weights, and waiting for requests in flight."""

    def __post_init__(self) -> None:
        if self.health_s <= 0 or self.update_s <= 0:
            raise ConfigError(f"{self}: timeouts must be above 0 seconds")


class ServerControl:
    """The routes of a vLLM server that change it. Calls from several threads at once are fine.

    Every method raises :class:`EngineUnreachableError` where no answer comes in time, and :class:`EngineError` where
    the server refuses.
    """

    def __init__(self, url: str, timeouts: ControlTimeouts) -> None:
        self.url = url
        self._timeouts = timeouts
        # A kept connection would be a broken one after the server was started again.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(base_url=url, headers=authorization(), limits=limits, trust_env=False)

    def healthy(self) -> None:
        """Nothing, if the server is well."""
        answer = self._send("GET", "/health")
        if not answer.ok:
            raise EngineUnreachableError(f"{self.url}/health answered {answer.status}; see the server's log")

    def label(self) -> str:
        """What the server calls its present weights."""
        answer = self._send("GET", "/weight_info")
        if answer.no_route:
            raise EngineError(
                f"{self.url} has no routes that change weights; start it with VLLM_SERVER_DEV_MODE=1 in its environment"
            )
        return str(self._good(answer).field("weight_version"))

    def served(self) -> Served:
        """Model and adapter."""
        return read_served(self.url, self._good(self._send("GET", "/v1/models")).body)

    def settings(self) -> dict[str, Any]:
        """How the server was started: ``vllm_config`` and ``vllm_env``; empty where it does not say."""
        answer = self._send("GET", "/server_info?config_format=json", timeout_s=self._timeouts.update_s)
        return {} if answer.no_route else self._good(answer).json()

    def pause(self, mode: PauseMode) -> None:
        """Nothing is computed on return."""
        self.call(f"/pause?mode={mode}")

    def resume(self) -> None:
        """Requests in flight go on, and waiting ones begin."""
        self.call("/resume")

    def drop_caches(self) -> None:
        """No key or value of older weights is used any more; what requests in flight hold is computed anew."""
        if not self.call("/reset_prefix_cache?reset_running_requests=true").field("success"):
            raise EngineError(f"{self.url} did not drop its prefix cache; see the server's log")

    def relabel(self, policy_version: int) -> None:
        """Tokens from here on are of this version."""
        self.call("/update_weight_version", {"new_version": str(policy_version)})

    def reload(self, folder: str) -> None:
        """Take the tensors of a folder of safetensors; others stay. Of a failure a model without weights is left."""
        self.call("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})

    def load_adapter(self, folder: str) -> None:
        """Serve a folder of PEFT's as the adapter in training, in place of an earlier one."""
        body = {"lora_name": ADAPTER, "lora_path": folder, "load_inplace": True}
        answer = self._send("POST", "/v1/load_lora_adapter", body, timeout_s=self._timeouts.update_s)
        if answer.no_route:
            raise EngineError(
                f"{self.url} takes no adapters; start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in "
                "its environment"
            )
        if answer.status == 404:
            raise EngineError(f"{self.url} cannot read {folder}: {answer.message}; it must see the same disk")
        self._good(answer)

    def unload_adapter(self) -> None:
        """No adapter in training is there, on return."""
        if self.served().asked_as == ADAPTER:
            self.call("/v1/unload_lora_adapter", {"lora_name": ADAPTER})

    def call(self, path: str, body: object = None) -> Answer:
        """POST JSON to a route that changes the server."""
        return self._good(self._send("POST", path, body or {}, timeout_s=self._timeouts.update_s))

    def get(self, path: str) -> Answer:
        """Read a route that takes no time."""
        return self._good(self._send("GET", path))

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, method: str, path: str, body: object = None, *, timeout_s: float = 0.0) -> Answer:
        limit_s = timeout_s or self._timeouts.health_s
        timeout = httpx.Timeout(limit_s, connect=min(limit_s, self._timeouts.health_s))
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        try:
            with Deadline(limit_s) as deadline:
                response = self._http.request(
                    *(method, path),
                    content=content,
                    headers=headers,
                    timeout=timeout,
                    extensions={"trace": deadline.trace},
                )
                deadline.check()
        except (httpx.HTTPError, OSError) as error:
            raise EngineUnreachableError(
                f"no answer from the vLLM server at {self.url}{path} within {limit_s:g} s ({type(error).__name__}: "
                f"{error}); see whether it runs"
            ) from error
        return Answer(url=self.url, path=path, status=response.status_code, body=response.content)

    def _good(self, answer: Answer) -> Answer:
        if not answer.ok:
            answer.refuse()
        return answer
