"""An SGLang server as the owner of the weights sees it: plain calls, each bounded in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from longrein.engines.vllm.urls import server_urls
from longrein.errors import EngineError, EngineUnreachableError


class SglangControl:
    """Brings a server to new weights. Requests in flight wait meanwhile, and go on with the new ones.

    Args:
        url: base URL.
        timeout_s: one call, loading weights included.
    """

    def __init__(self, url: str, timeout_s: float = 300.0) -> None:
        self.url = server_urls(url)[0]
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False)

    def take(self, folder: Path, policy_version: int) -> None:
        """Have the server sample with a folder's weights; it must see the folder under the same path.

        Raises:
            EngineUnreachableError: no answer in time.
            EngineError: it refused them. SGLang then goes back to the weights it had.
        """
        # "retract" puts requests back into the queue, so that none of their KV is of the old weights.
        self._call("/pause_generation", {"mode": "retract"})
        try:
            body = {"model_path": str(folder), "weight_version": str(policy_version), "flush_cache": True}
            self._call("/update_weights_from_disk", body)
        finally:
            self._call("/continue_generation", {})

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def _call(self, path: str, body: dict[str, Any]) -> None:
        try:
            answer = self._http.post(path, json=body)
        except (httpx.HTTPError, OSError) as error:
            raise EngineUnreachableError(f"no answer from the SGLang server at {self.url}{path}: {error}") from error
        if answer.status_code != 200:
            raise EngineError(
                f"the SGLang server at {self.url}{path} answered {answer.status_code}: {answer.text[:500]}"
            )
