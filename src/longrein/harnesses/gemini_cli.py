"""Gemini CLI, as its npm package has it, over ``streamGenerateContent``. Source of the recipe: agents.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from longrein.harnesses.installed import installed, node
from longrein.harnesses.program import node_program
from longrein.types import Endpoint, Launch, Task

VERSION = "0.61.0"
TOOLS = (*("glob", "grep_search", "list_directory", "read_file", "replace", "run_shell_command", "write_file"),)
_ENTRY = "node_modules/@google/gemini-cli/bundle/gemini.js"


class GeminiCLI:
    """Runs ``gemini`` once on a task, with telemetry, updates and its own retries off.

    Args:
        binary: path of the package's ``bundle/gemini.js``; by default where ``make agents`` puts it.
        tools: the tools that the model is offered; ``invoke_agent`` with ``complete_task`` adds sub-agents.
    """

    def __init__(self, binary: str = "", tools: tuple[str, ...] = TOOLS) -> None:
        self._program = node_program(node(), Path(binary) if binary else installed(_ENTRY))
        self._tools = tools

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        return "gemini_cli"

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the package or node is not there."""
        self._program.check(f"Gemini CLI {VERSION}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """The prompt goes to stdin, where it has no limit of length."""
        return Launch(
            argv=(*self._program.argv, "--yolo", "--model", endpoint.model, "--output-format", "stream-json"),
            env={
                "GOOGLE_GEMINI_BASE_URL": endpoint.base_url,
                "GEMINI_API_KEY": endpoint.api_key,
                "GEMINI_TELEMETRY_ENABLED": "false",
                "GEMINI_CLI_NO_RELAUNCH": "true",
                "NO_BROWSER": "1",
            },
            files={".gemini/settings.json": json.dumps(self._settings()).encode()},
            readonly_mounts=self._program.mounts,
            stdin=task.prompt.encode(),
        )

    def _settings(self) -> dict[str, Any]:
        return {
            "telemetry": {"enabled": False},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"disableAutoUpdate": True, "enableAutoUpdate": False, "maxAttempts": 1},
            "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
            "tools": {"core": list(self._tools)},
        }
