"""OpenCode, the real binary of its npm package. Source of the recipe: agents.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from longrein.harnesses.installed import installed, npm_platform, require_program
from longrein.types import Endpoint, Launch, Mount, Task

VERSION = "1.18.33"
_PROVIDER = "gw"  # "openai" would select the responses dialect
_DENIED = ("webfetch", "task", "skill", "todowrite", "question")
_DISABLED = (
    *("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE", "PROJECT_CONFIG", "CLAUDE_CODE"),
    "EXTERNAL_SKILLS",
)


class OpenCode:
    """Runs ``opencode run`` on one task, with network features, sharing and compaction off.

    Args:
        binary: path of the native binary (not of the node wrapper); by default where ``make agents`` puts it,
            below ``.agents`` of the current folder or of one above it.
        denied_tools: tools taken away from the model's list; ``task`` is the one that starts sub-agents.
        compact_at: tokens at which it summarises the conversation; 0 for never.
    """

    def __init__(self, binary: str = "", denied_tools: tuple[str, ...] = _DENIED, compact_at: int = 0) -> None:
        package = f"node_modules/opencode-{npm_platform()}"
        self._binary = (Path(binary) if binary else installed(f"{package}/bin/opencode")).resolve()
        self._denied_tools = denied_tools
        self._compact_at = compact_at

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        return "opencode"

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the binary is not there."""
        require_program(self._binary, "OpenCode", f"npm's opencode-ai@{VERSION}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """The prompt goes to stdin: as an argument it would arrive in literal quotes."""
        folder = str(self._binary.parent)
        disabled = _DISABLED if self._compact_at else (*_DISABLED, "AUTOCOMPACT")
        env = {f"OPENCODE_DISABLE_{feature}": "1" for feature in disabled}
        env["OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER"] = "1"
        env["OPENCODE_CONFIG_CONTENT"] = json.dumps(self._config(endpoint))
        return Launch(
            argv=(str(self._binary), "run", "--format", "json", "--title", "t", "--pure"),
            env=env,
            readonly_mounts=(Mount(source=folder, target=folder),),
            stdin=task.prompt.encode(),
        )

    def _config(self, endpoint: Endpoint) -> dict[str, Any]:
        context = self._compact_at + endpoint.max_tokens if self._compact_at else endpoint.context_length
        limit = {"context": context, "output": endpoint.max_tokens}
        model = {"name": endpoint.model, "tool_call": True, "reasoning": True, "limit": limit}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": _PROVIDER,
            "options": {"baseURL": f"{endpoint.base_url}/v1", "apiKey": endpoint.api_key, "timeout": False},
            "models": {endpoint.model: model},
        }
        return {
            **dict.fromkeys(("autoupdate", "snapshot", "lsp", "formatter"), False),
            "share": "disabled",
            "compaction": {"auto": bool(self._compact_at), "prune": False},
            "model": f"{_PROVIDER}/{endpoint.model}",
            "small_model": f"{_PROVIDER}/{endpoint.model}",
            "enabled_providers": [_PROVIDER],
            "provider": {_PROVIDER: provider},
            "permission": {"*": "allow", **dict.fromkeys(self._denied_tools, "deny")},
        }
