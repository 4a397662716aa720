"""Pi, as its npm package has it, over any of the four dialects. Source of the recipe: agents.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from longrein.harnesses.installed import installed, node
from longrein.harnesses.program import node_program
from longrein.types import Endpoint, Launch, Task

VERSION = "0.73.1"
_ENTRY = "node_modules/@mariozechner/pi-coding-agent/dist/cli.js"
_FOLDER = ".pi/agent"
_PROVIDER = "gw"

Dialect = Literal["chat", "responses", "messages", "gemini"]
_API: dict[Dialect, str] = {
    "chat": "openai-completions",
    "responses": "openai-responses",
    "messages": "anthropic-messages",
    "gemini": "google-generative-ai",
}
_SUFFIX: dict[Dialect, str] = {"chat": "/v1", "responses": "/v1", "messages": "", "gemini": "/v1beta"}


class Pi:
    """Runs ``pi`` once on a task, offline, with compaction, saved sessions and its own retries off.

    Args:
        binary: path of the package's ``dist/cli.js``; by default where ``make agents`` puts it.
        dialect: how it speaks to the model.
        compaction: summarise long histories, in a call of its own.
    """

    def __init__(self, binary: str = "", dialect: Dialect = "chat", compaction: bool = False) -> None:
        self._program = node_program(node(), Path(binary) if binary else installed(_ENTRY))
        self._dialect: Dialect = dialect
        self._compaction = compaction

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        return "pi"

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the package or node is not there."""
        self._program.check(f"Pi {VERSION}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """The prompt goes to stdin, where it has no limit of length."""
        retry = {"enabled": False, "provider": {"maxRetries": 0}}
        # Pi's own numbers are these parts of a context of 128k.
        kept = endpoint.context_length // 8
        compaction = {"enabled": self._compaction, "reserveTokens": kept, "keepRecentTokens": kept}
        settings = {"retry": retry, "compaction": compaction, "enableInstallTelemetry": False}
        chosen = ("--provider", _PROVIDER, "--model", endpoint.model)
        return Launch(
            argv=(*self._program.argv, "--print", "--mode", "json", *chosen, "--no-session"),
            env={"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_CODING_AGENT_DIR": f"$HOME/{_FOLDER}"},
            files={
                f"{_FOLDER}/models.json": json.dumps({"providers": {_PROVIDER: self._provider(endpoint)}}).encode(),
                f"{_FOLDER}/settings.json": json.dumps(settings).encode(),
            },
            readonly_mounts=self._program.mounts,
            stdin=task.prompt.encode(),
        )

    def _provider(self, endpoint: Endpoint) -> dict[str, Any]:
        model = {
            "id": endpoint.model,
            "reasoning": True,
            "contextWindow": endpoint.context_length,
            "maxTokens": endpoint.max_tokens,
        }
        url = endpoint.base_url + _SUFFIX[self._dialect]
        return {"baseUrl": url, "api": _API[self._dialect], "apiKey": endpoint.api_key, "models": [model]}
