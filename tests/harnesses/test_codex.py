from __future__ import annotations

import pickle
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longrein.errors import ConfigError
from longrein.harnesses.codex import Codex
from longrein.types import Endpoint, Launch, Mount, Task

ENDPOINT = Endpoint(
    base_url="http://127.0.0.1:4321/s3cret",
    api_key="s3cret",
    model="policy",
    port=4321,
    context_length=8192,
    max_tokens=256,
)
TASK = Task(task_id="t", prompt="do it")
BINARY = "/opt/codex/vendor/bin/codex"


def config(launch: Launch) -> dict[str, object]:
    return tomllib.loads(launch.files[".codex/config.toml"].decode())


def test_launch_is_the_recipe() -> None:
    launch = Codex(binary=BINARY).launch(TASK, ENDPOINT)
    flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
    assert launch.argv == (BINARY, "exec", *flags, "-")
    assert launch.stdin == b"do it"
    assert launch.readonly_mounts == (Mount(source="/opt/codex/vendor", target="/opt/codex/vendor"),)
    assert launch.env == {"CODEX_HOME": "$HOME/.codex", "GW_KEY": "s3cret"}
    written = config(launch)
    assert (written["model"], written["model_provider"]) == ("policy", "gw")
    assert written["model_auto_compact_token_limit"] == 1_000_000_000
    assert written["model_providers"] == {
        "gw": {
            "name": "gw",
            "base_url": "http://127.0.0.1:4321/s3cret/v1",
            "wire_api": "responses",
            "env_key": "GW_KEY",
            "supports_websockets": False,
            "request_max_retries": 0,
            "stream_max_retries": 0,
            "stream_idle_timeout_ms": 3_600_000,
        }
    }
    features = written["features"]
    assert isinstance(features, dict) and "apps" in features and not any(features.values())
    assert written["agents"] == {"enabled": False}


def test_sub_agents_and_compaction_can_be_had() -> None:
    written = config(Codex(binary=BINARY, multi_agent=True, compact_at=5000).launch(TASK, ENDPOINT))
    assert written["agents"] == {"enabled": True}
    assert (written["model_context_window"], written["model_auto_compact_token_limit"]) == (8192, 5000)


@example(prompt="", model="\U00010000")  # outside what \u of JSON writes in one piece and TOML would take
@given(prompt=st.text(), model=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1))
def test_prompt_and_model_arrive_as_they_are(prompt: str, model: str) -> None:
    endpoint = msgspec.structs.replace(ENDPOINT, model=model)
    launch = Codex(binary=BINARY).launch(Task(task_id="t", prompt=prompt), endpoint)
    assert launch.stdin == prompt.encode()
    assert config(launch)["model"] == model


def test_the_secret_is_in_the_configuration_and_the_key_alone() -> None:
    launch = Codex(binary=BINARY).launch(TASK, ENDPOINT)
    assert [name for name, value in launch.env.items() if "s3cret" in value] == ["GW_KEY"]
    assert not any("s3cret" in item for item in launch.argv), "a command line can be read by everybody"


def test_a_missing_binary_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"make agents.*@openai/codex@"):
        Codex(binary=str(tmp_path / "codex")).check()


def test_it_is_picklable() -> None:
    harness = Codex(binary=BINARY, multi_agent=True)
    assert pickle.loads(pickle.dumps(harness)).launch(TASK, ENDPOINT) == harness.launch(TASK, ENDPOINT)
