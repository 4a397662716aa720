"""Codex, the real binary of its npm package. Source of the recipe: agents.md."""

from __future__ import annotations

import json
import platform
from pathlib import Path

from longrein.harnesses.installed import installed, npm_platform, require_program
from longrein.types import Endpoint, Launch, Mount, Task

VERSION = "0.171.0"
_OFF = ("plugins", "apps", "goals", "image_generation", "tool_suggest", "skill_search", "shell_snapshot")
_ENDLESS = 1_000_000_000  # it compacts at 90 % of the window, whatever the limit
_CONFIG = """\
model = {model}
model_provider = "gw"
check_for_update_on_startup = false
model_context_window = {context_length}
model_auto_compact_token_limit = {compact_at}
web_search = "disabled"
agents = {{ enabled = {multi_agent} }}
features = {{ {features} }}
skills = {{ bundled = {{ enabled = false }} }}
analytics = {{ enabled = false }}
[model_providers.gw]
name = "gw"
base_url = {base_url}
wire_api = "responses"
env_key = "GW_KEY"
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = 3600000
"""


class Codex:
    """Runs ``codex exec`` on one task; the sandbox around it is ours, so its own is off.

    Args:
        binary: path of the native binary (not of the node wrapper); by default where ``make agents`` puts it.
        multi_agent: offer the tools that start sub-agents, which run at the same time as the agent.
        compact_at: tokens at which it summarises the conversation; 0 for never.
    """

    def __init__(self, binary: str = "", multi_agent: bool = False, compact_at: int = 0) -> None:
        vendor = f"node_modules/@openai/codex-{npm_platform()}/vendor/{platform.machine()}-unknown-linux-musl"
        self._binary = (Path(binary) if binary else installed(f"{vendor}/bin/codex")).resolve()
        self._multi_agent = multi_agent
        self._compact_at = compact_at

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        return "codex"

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the binary is not there."""
        require_program(self._binary, "Codex", f"npm's @openai/codex@{VERSION}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """The prompt goes to stdin, which ``-`` names: an argument could be taken for an option."""
        root = str(self._binary.parent.parent)  # the tools that it brings along lie beside bin
        config = _CONFIG.format(
            model=json.dumps(endpoint.model, ensure_ascii=False),
            context_length=endpoint.context_length if self._compact_at else _ENDLESS,
            compact_at=self._compact_at or _ENDLESS,
            multi_agent=json.dumps(self._multi_agent),
            features=", ".join(f"{feature} = false" for feature in _OFF),
            base_url=json.dumps(f"{endpoint.base_url}/v1"),
        )
        options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json", "-")
        return Launch(
            argv=(str(self._binary), "exec", *options),
            env={"CODEX_HOME": "$HOME/.codex", "GW_KEY": endpoint.api_key},
            files={".codex/config.toml": config.encode()},
            readonly_mounts=(Mount(source=root, target=root),),
            stdin=task.prompt.encode(),
        )
