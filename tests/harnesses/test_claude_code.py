from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrein.errors import ConfigError
from longrein.harnesses.claude_code import ClaudeCode
from longrein.types import Endpoint, Mount, Task

ENDPOINT = Endpoint(
    base_url="http://127.0.0.1:4321/s3cret",
    api_key="s3cret",
    model="policy",
    port=4321,
    context_length=8192,
    max_tokens=256,
)
TASK = Task(task_id="t", prompt="do it")
BINARY = "/opt/claude/claude"


def test_launch_is_the_recipe() -> None:
    launch = ClaudeCode(binary=BINARY).launch(TASK, ENDPOINT)
    assert launch.argv[:3] == (BINARY, "-p", "--dangerously-skip-permissions")
    at = launch.argv.index("--setting-sources")
    assert launch.argv[at + 1] == ""
    at = launch.argv.index("--tools")
    assert launch.argv[at + 1] == "Bash,Read,Edit,Write,Glob,Grep"
    assert launch.stdin == b"do it"
    assert launch.readonly_mounts == (Mount(source="/opt/claude", target="/opt/claude"),)
    assert launch.files == {}
    assert launch.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:4321/s3cret"
    assert {name for name, value in launch.env.items() if value == "policy"} == {
        *("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"),
        *("ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL"),
    }
    assert launch.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == launch.env["IS_SANDBOX"] == "1"
    assert launch.env["CLAUDE_CONFIG_DIR"] == "$HOME/.claude"
    assert launch.env["CLAUDE_CODE_MAX_RETRIES"] == "1"
    assert launch.env["DISABLE_COMPACT"] == "1"
    assert launch.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "256"


def test_tools_and_compaction_can_be_chosen() -> None:
    launch = ClaudeCode(binary=BINARY, tools=("Bash", "Task"), compact_at=49_872).launch(TASK, ENDPOINT)
    assert launch.argv[launch.argv.index("--tools") + 1] == "Bash,Task"
    assert launch.env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "100000"
    assert launch.env["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE"] == "50.000"
    assert "DISABLE_COMPACT" not in launch.env


@given(prompt=st.text())
def test_the_prompt_arrives_as_it_is(prompt: str) -> None:
    assert ClaudeCode(binary=BINARY).launch(Task(task_id="t", prompt=prompt), ENDPOINT).stdin == prompt.encode()


def test_the_secret_is_in_two_variables() -> None:
    launch = ClaudeCode(binary=BINARY).launch(TASK, ENDPOINT)
    secret = {name for name, value in launch.env.items() if "s3cret" in value}
    assert secret == {"ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"}
    assert not any("s3cret" in item for item in launch.argv), "a command line can be read by everybody"


def test_a_missing_binary_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"make agents.*@anthropic-ai/claude-code@"):
        ClaudeCode(binary=str(tmp_path / "claude")).check()


def test_it_is_picklable() -> None:
    harness = ClaudeCode(binary=BINARY, compact_at=5)
    assert pickle.loads(pickle.dumps(harness)).launch(TASK, ENDPOINT) == harness.launch(TASK, ENDPOINT)
