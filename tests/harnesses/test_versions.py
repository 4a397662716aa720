from __future__ import annotations

from pathlib import Path

import pytest

from longrein.harnesses import aider, claude_code, codex, gemini_cli, mini_swe_agent, pi, qwen_code

INSTALLED = (Path(__file__).parents[2] / "agents.mk").read_text()


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("@openai/codex@", codex.VERSION),
        ("@anthropic-ai/claude-code@", claude_code.VERSION),
        ("@qwen-code/qwen-code@", qwen_code.VERSION),
        ("@google/gemini-cli@", gemini_cli.VERSION),
        ("@mariozechner/pi-coding-agent@", pi.VERSION),
        ("mini-swe-agent==", mini_swe_agent.VERSION),
        ("aider-chat==", aider.VERSION),
    ],
)
def test_make_agents_installs_the_version_that_the_recipe_is_for(package: str, version: str) -> None:
    assert f"{package}{version}" in INSTALLED.split()
