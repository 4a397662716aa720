from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from longrein.errors import ConfigError
from longrein.harnesses.installed import npm_platform
from longrein.harnesses.opencode import OpenCode
from longrein.types import Endpoint, Mount, Task

ENDPOINT = Endpoint(
    base_url="http://127.0.0.1:4321/s3cret",
    api_key="s3cret",
    model="policy",
    port=4321,
    context_length=8192,
    max_tokens=256,
)
TASK = Task(task_id="t", prompt='write "hi" to a file')


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "package" / "bin" / "opencode"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_launch_is_the_recipe(binary: Path) -> None:
    harness = OpenCode(binary=str(binary))
    harness.check()
    launch = harness.launch(TASK, ENDPOINT)
    assert launch.argv == (str(binary), "run", "--format", "json", "--title", "t", "--pure")
    assert launch.stdin == b'write "hi" to a file'
    assert launch.readonly_mounts == (Mount(source=str(binary.parent), target=str(binary.parent)),)
    assert launch.files == {}
    config = json.loads(launch.env["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == config["small_model"] == "gw/policy"
    assert config["enabled_providers"] == ["gw"]
    provider = config["provider"]["gw"]
    assert provider["npm"] == "@ai-sdk/openai-compatible"
    assert provider["options"] == {"baseURL": "http://127.0.0.1:4321/s3cret/v1", "apiKey": "s3cret", "timeout": False}
    assert provider["models"]["policy"]["limit"] == {"context": 8192, "output": 256}
    assert config["compaction"] == {"auto": False, "prune": False}
    assert config["permission"] == {
        "*": "allow",
        **dict.fromkeys(("webfetch", "task", "skill", "todowrite", "question"), "deny"),
    }
    switches = {name for name, value in launch.env.items() if value == "1"}
    assert {f"OPENCODE_DISABLE_{name}" for name in ("AUTOUPDATE", "MODELS_FETCH", "AUTOCOMPACT", "SHARE")} <= switches
    assert set(launch.env) - switches == {"OPENCODE_CONFIG_CONTENT"}


def test_a_missing_binary_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make agents"):
        OpenCode(binary=str(tmp_path / "opencode")).check()


def test_it_is_found_where_make_agents_puts_it(tmp_path: Path, binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / f".agents/node_modules/opencode-{npm_platform()}/bin/opencode"
    installed.parent.mkdir(parents=True)
    binary.rename(installed)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    harness = pickle.loads(pickle.dumps(OpenCode()))
    harness.check()
    assert harness.launch(TASK, ENDPOINT).argv[0] == str(installed)


def test_compaction_and_sub_agents_can_be_had(binary: Path) -> None:
    launch = OpenCode(binary=str(binary), denied_tools=("webfetch",), compact_at=5000).launch(TASK, ENDPOINT)
    config = json.loads(launch.env["OPENCODE_CONFIG_CONTENT"])
    assert config["compaction"] == {"auto": True, "prune": False}
    assert config["provider"]["gw"]["models"]["policy"]["limit"] == {"context": 5256, "output": 256}
    assert config["permission"] == {"*": "allow", "webfetch": "deny"}
    assert "OPENCODE_DISABLE_AUTOCOMPACT" not in launch.env
