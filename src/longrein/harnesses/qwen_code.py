"""Qwen Code, as its npm package has it, over chat completions. Source of the recipe: agents.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from longrein.harnesses.installed import installed, node
from longrein.harnesses.program import node_program
from longrein.types import Endpoint, Launch, Task

VERSION = "0.24.4"
# It offers these whatever its list of tools says.
_UNASKED = (
    *("agent", "enter_worktree", "exit_worktree", "get_goal", "list_agents", "record_artifact", "report_findings"),
    *("send_message", "skill", "task_stop", "tool_call", "tool_search", "update_goal"),
)
TOOLS = ("edit", "glob", "grep_search", "read_file", "run_shell_command", "write_file")
_ENTRY = "node_modules/@qwen-code/qwen-code/cli.js"


class QwenCode:
    """Runs ``qwen`` once on a task, with telemetry, updates, managed memory and its own retries off.

    Args:
        binary: path of the package's ``cli.js``; by default where ``make agents`` puts it.
        tools: the tools that the model is offered; ``agent`` adds sub-agents.
    """

    def __init__(self, binary: str = "", tools: tuple[str, ...] = TOOLS) -> None:
        # cli-entry.js would start cli.js as a second process, with the same option.
        self._program = node_program(node(), Path(binary) if binary else installed(_ENTRY), ("--expose-gc",))
        self._tools = tools

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        return "qwen_code"

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the package or node is not there."""
        self._program.check(f"Qwen Code {VERSION}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """The prompt goes to stdin, where it has no limit of length."""
        return Launch(
            argv=(*self._program.argv, "--yolo", "--output-format", "stream-json"),
            env={
                "OPENAI_BASE_URL": f"{endpoint.base_url}/v1",
                "OPENAI_API_KEY": endpoint.api_key,
                "OPENAI_MODEL": endpoint.model,
                "QWEN_CODE_NO_RELAUNCH": "true",
                "QWEN_DISABLE_AUTO_TITLE": "1",
            },
            files={".qwen/settings.json": json.dumps(self._settings(endpoint)).encode()},
            readonly_mounts=self._program.mounts,
            stdin=task.prompt.encode(),
        )

    def _settings(self, endpoint: Endpoint) -> dict[str, Any]:
        generation = {
            "maxRetries": 0,
            "timeout": 3_600_000,
            "streamIdleTimeoutMs": 0,
            "contextWindowSize": endpoint.context_length,
            # A known bound keeps it from asking again with a bound of 64000 after a bad answer.
            "samplingParams": {"max_tokens": endpoint.max_tokens},
        }
        return {
            "telemetry": {"enabled": False},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
            "security": {"auth": {"selectedType": "openai"}},
            # Another agent of its own would read the conversation and write memories, in the same session.
            "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
            "skills": {"disabledLevels": ["bundled"]},
            "tools": {"core": list(self._tools), "disabled": [tool for tool in _UNASKED if tool not in self._tools]},
            "model": {"name": endpoint.model, "generationConfig": generation},
        }
