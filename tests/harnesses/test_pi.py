from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from longrein.errors import ConfigError
from longrein.harnesses.pi import Dialect, Pi
from tests.harnesses.packages import ENDPOINT, TASK, in_place, install_node_agent

ENTRY = "node_modules/@mariozechner/pi-coding-agent/dist/cli.js"


def test_launch_is_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = install_node_agent(tmp_path, ENTRY, monkeypatch)
    harness = pickle.loads(pickle.dumps(Pi()))
    harness.check()
    launch = harness.launch(TASK, ENDPOINT)
    node = tmp_path / ".agents/bin/node"
    options = ("--print", "--mode", "json", "--provider", "gw", "--model", "policy", "--no-session")
    assert launch.argv == (str(node), str(script), *options)
    assert launch.stdin == TASK.prompt.encode()
    assert launch.readonly_mounts == (in_place(node), in_place(tmp_path / ".agents/node_modules"))
    assert launch.env == {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_CODING_AGENT_DIR": "$HOME/.pi/agent"}
    settings = json.loads(launch.files[".pi/agent/settings.json"])
    assert settings["retry"] == {"enabled": False, "provider": {"maxRetries": 0}}
    assert settings["compaction"] == {"enabled": False, "reserveTokens": 1024, "keepRecentTokens": 1024}
    provider = json.loads(launch.files[".pi/agent/models.json"])["providers"]["gw"]
    assert provider["apiKey"] == "s3cret"
    (model,) = provider["models"]
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("policy", 8192, 256)


@pytest.mark.parametrize(
    ("dialect", "api", "path"),
    [
        ("chat", "openai-completions", "/v1"),
        ("responses", "openai-responses", "/v1"),
        ("messages", "anthropic-messages", ""),
        ("gemini", "google-generative-ai", "/v1beta"),
    ],
)
def test_it_speaks_any_dialect(
    dialect: Dialect, api: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_node_agent(tmp_path, ENTRY, monkeypatch)
    launch = Pi(dialect=dialect).launch(TASK, ENDPOINT)
    provider = json.loads(launch.files[".pi/agent/models.json"])["providers"]["gw"]
    assert (provider["api"], provider["baseUrl"]) == (api, f"http://127.0.0.1:4321/s3cret{path}")


def test_a_missing_package_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Pi 0\.73\.1 is not installed.*make agents"):
        Pi(binary=str(tmp_path / "cli.js")).check()
