"""OpenCode, the real binary of its npm package. Source of the recipe: agents.md (version 1.18.33)."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from longrein.errors import ConfigError
from longrein.types import Endpoint, Launch, Mount, Task

_PROVIDER = "gw"  # "openai" would select the responses dialect
_PLATFORMS = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_DENIED = ("webfetch", "task", "skill", "todowrite", "question")
_DISABLED = (
    "AUTOUPDATE",
    "MODELS_FETCH",
    "LSP_DOWNLOAD",
    "DEFAULT_PLUGINS",
    "SHARE",
    "AUTOCOMPACT",
    "PROJECT_CONFIG",
    "CLAUDE_CODE",
    "EXTERNAL_SKILLS",
)


class OpenCode:
    """Runs ``opencode run`` on one task, with network features, sharing and compaction off.

    Args:
        binary: path of the native binary (not of the node wrapper); by default where ``make agents`` puts it,
            below ``.agents`` of the current folder or of one above it.
        denied_tools: tools taken away from the model's list.
    """

    def __init__(self, binary: str = "", denied_tools: tuple[str, ...] = _DENIED) -> None:
        self._binary = Path(binary).absolute() if binary else _installed()
        self._denied_tools = denied_tools

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        return "opencode"

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the binary is not there."""
        if not os.access(self._binary, os.X_OK) or not self._binary.is_file():
            raise ConfigError(
                f"OpenCode is not installed at {self._binary}: run `make agents` in the repository, or "
                "`npm install opencode-ai@1.18.33` elsewhere and give the path of "
                "node_modules/opencode-linux-x64/bin/opencode as harness.binary"
            )

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """The prompt goes to stdin: as an argument it would arrive in literal quotes."""
        folder = str(self._binary.resolve().parent)
        env = {f"OPENCODE_DISABLE_{feature}": "1" for feature in _DISABLED}
        env["OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER"] = "1"
        env["OPENCODE_CONFIG_CONTENT"] = json.dumps(self._config(endpoint))
        return Launch(
            argv=(f"{folder}/{self._binary.resolve().name}", "run", "--format", "json", "--title", "t", "--pure"),
            env=env,
            readonly_mounts=(Mount(source=folder, target=folder),),
            stdin=task.prompt.encode(),
        )

    def _config(self, endpoint: Endpoint) -> dict[str, Any]:
        model = {
            "name": endpoint.model,
            "tool_call": True,
            "reasoning": True,
            "limit": {"context": endpoint.context_length, "output": endpoint.max_tokens},
        }
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": _PROVIDER,
            "options": {"baseURL": f"{endpoint.base_url}/v1", "apiKey": endpoint.api_key, "timeout": False},
            "models": {endpoint.model: model},
        }
        return {
            "autoupdate": False,
            "share": "disabled",
            "snapshot": False,
            "lsp": False,
            "formatter": False,
            "compaction": {"auto": False, "prune": False},
            "model": f"{_PROVIDER}/{endpoint.model}",
            "small_model": f"{_PROVIDER}/{endpoint.model}",
            "enabled_providers": [_PROVIDER],
            "provider": {_PROVIDER: provider},
            "permission": {"*": "allow", **dict.fromkeys(self._denied_tools, "deny")},
        }


def _installed() -> Path:
    machine = _PLATFORMS.get(platform.machine().lower(), platform.machine())
    relative = Path(f".agents/node_modules/opencode-{platform.system().lower()}-{machine}/bin/opencode")
    here = Path.cwd()
    found = (folder / relative for folder in (here, *here.parents) if (folder / relative).is_file())
    return next(found, here / relative)
