"""``[harness]`` -> the agent: names, paths and options become a harness."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_type_hints

import msgspec

from longrein.config import HarnessSection
from longrein.errors import ConfigError
from longrein.harnesses.aider import Aider
from longrein.harnesses.base import Harness
from longrein.harnesses.claude_code import ClaudeCode
from longrein.harnesses.codex import Codex
from longrein.harnesses.command import Command
from longrein.harnesses.gemini_cli import GeminiCLI
from longrein.harnesses.mini_swe_agent import MiniSweAgent
from longrein.harnesses.opencode import OpenCode
from longrein.harnesses.pi import Pi
from longrein.harnesses.qwen_code import QwenCode

INSTALLED: dict[str, Callable[..., Harness]] = {
    "opencode": OpenCode,
    "codex": Codex,
    "claude_code": ClaudeCode,
    "qwen_code": QwenCode,
    "gemini_cli": GeminiCLI,
    "pi": Pi,
    "mini_swe_agent": partial(MiniSweAgent, mode="tool"),
    "mini_swe_agent_text": partial(MiniSweAgent, mode="text"),
    "aider": Aider,
}
"""Name of an agent that ``make agents`` installs -> its harness, made from a path and options."""


def harness_of(section: HarnessSection) -> Harness:
    """The agent.

    Raises:
        ConfigError: an unknown name, or options that the agent does not have.
    """
    if section.name == "command":
        if section.options:
            raise ConfigError("a command has no options; use argv, script and env")
        if section.script:
            return Command.python_script(section.script, env=section.env, python=section.python)
        if not section.argv:
            raise ConfigError("no agent is named; give argv, script or name in [harness]")
        return Command(argv=section.argv, env=section.env)
    if section.name in INSTALLED:
        make = INSTALLED[section.name]
        return make(binary=section.binary, **_options(make, section))
    raise ConfigError(f"unknown harness; known: {', '.join(['command', *INSTALLED])}")


def option_names(name: str) -> tuple[str, ...]:
    """What ``[harness.options]`` may hold for an installed agent."""
    return tuple(_kinds(INSTALLED[name]))


def _options(make: Callable[..., Harness], section: HarnessSection) -> dict[str, Any]:
    kinds = _kinds(make)
    converted: dict[str, Any] = {}
    for key, value in section.options.items():
        if key not in kinds:
            known = ", ".join(kinds) or "none"
            raise ConfigError(f"{section.name} has no option {key!r}; it has: {known}")
        try:
            converted[key] = msgspec.convert(value, kinds[key])
        except msgspec.ValidationError as error:
            raise ConfigError(f"option {key} of {section.name}: {error}") from error
    return converted


def _kinds(make: Callable[..., Harness]) -> dict[str, Any]:
    """Option -> its type, as the harness's constructor declares them; what the name has decided is no option."""
    bound: dict[str, Any] = make.keywords if isinstance(make, partial) else {}
    constructor: Any = make.func if isinstance(make, partial) else make
    hints = get_type_hints(constructor.__init__)
    return {name: hints[name] for name in inspect.signature(constructor).parameters if name not in ("binary", *bound)}
