"""Claude Code, the real binary of its npm package. Source of the recipe: agents.md."""

from __future__ import annotations

from pathlib import Path

from longrein.harnesses.installed import installed, npm_platform, require_program
from longrein.types import Endpoint, Launch, Mount, Task

VERSION = "2.1.332"
TOOLS = ("Bash", "Read", "Edit", "Write", "Glob", "Grep")
_OPTIONS = (
    *("-p", "--dangerously-skip-permissions", "--output-format", "stream-json", "--verbose"),
    *("--strict-mcp-config", "--no-session-persistence", "--setting-sources", "", "--disable-slash-commands"),
)
_ON = (
    *("IS_SANDBOX", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER", "DISABLE_PROMPT_CACHING"),
    *("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS"),
    *("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "CLAUDE_CODE_DISABLE_AUTO_MEMORY"),
    "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS",
)
_MODELS = (
    *("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"),
    *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("HAIKU", "SONNET", "OPUS")),
)

_SMALLEST_WINDOW, _MOST_RESERVED = 100_000, 20_000


class ClaudeCode:
    """Runs ``claude -p`` on one task; the sandbox around it is ours, so it asks for no permission.

    Args:
        binary: path of the native binary (not of the node wrapper); by default where ``make agents`` puts it.
        tools: tools that the model is offered; ``Task`` is the one that starts sub-agents.
        compact_at: tokens at which it summarises the conversation; 0 for never.
    """

    def __init__(self, binary: str = "", tools: tuple[str, ...] = TOOLS, compact_at: int = 0) -> None:
        package = f"node_modules/@anthropic-ai/claude-code-{npm_platform()}"
        self._binary = (Path(binary) if binary else installed(f"{package}/claude")).resolve()
        self._tools = tools
        self._compact_at = compact_at

    @property
    def name(self) -> str:
        """The name used in run files and metrics."""
        return "claude_code"

    def check(self) -> None:
        """Raise :class:`~longrein.errors.ConfigError` when the binary is not there."""
        require_program(self._binary, "Claude Code", f"npm's @anthropic-ai/claude-code@{VERSION}")

    def launch(self, task: Task, endpoint: Endpoint) -> Launch:
        """The prompt goes to stdin: an argument could be taken for an option."""
        folder = str(self._binary.parent)
        env = {
            **dict.fromkeys(_ON, "1"),
            **dict.fromkeys(_MODELS, endpoint.model),
            "ANTHROPIC_BASE_URL": endpoint.base_url,  # it adds /v1 itself
            "ANTHROPIC_AUTH_TOKEN": endpoint.api_key,
            "CLAUDE_CONFIG_DIR": "$HOME/.claude",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_MAX_RETRIES": "1",
            "API_TIMEOUT_MS": "3600000",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(endpoint.max_tokens),
            **(self._compaction(endpoint) if self._compact_at else {"DISABLE_COMPACT": "1"}),
        }
        return Launch(
            argv=(str(self._binary), *_OPTIONS, "--tools", ",".join(self._tools)),
            env=env,
            readonly_mounts=(Mount(source=folder, target=folder),),
            stdin=task.prompt.encode(),
        )

    def _compaction(self, endpoint: Endpoint) -> dict[str, str]:
        """It takes no window below 100k tokens, but any percentage of what the window leaves for prompts."""
        window = max(_SMALLEST_WINDOW, 2 * self._compact_at)
        percent = f"{100 * self._compact_at / (window - min(endpoint.max_tokens, _MOST_RESERVED)):.3f}"
        return {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(window), "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": percent}
