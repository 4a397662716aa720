from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from longrein.errors import ConfigError
from longrein.harnesses.gemini_cli import TOOLS, GeminiCLI
from tests.harnesses.packages import ENDPOINT, TASK, in_place, install_node_agent

ENTRY = "node_modules/@google/gemini-cli/bundle/gemini.js"


def test_launch_is_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = install_node_agent(tmp_path, ENTRY, monkeypatch)
    harness = pickle.loads(pickle.dumps(GeminiCLI()))
    harness.check()
    launch = harness.launch(TASK, ENDPOINT)
    node = tmp_path / ".agents/bin/node"
    options = ("--yolo", "--model", "policy", "--output-format", "stream-json")
    assert launch.argv == (str(node), str(script), *options)
    assert launch.stdin == TASK.prompt.encode()
    assert launch.readonly_mounts == (in_place(node), in_place(tmp_path / ".agents/node_modules"))
    assert launch.env["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:4321/s3cret"
    assert launch.env["GEMINI_API_KEY"] == "s3cret"
    assert launch.files.keys() == {".gemini/settings.json"}
    settings = json.loads(launch.files[".gemini/settings.json"])
    assert settings["security"] == {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}}
    assert settings["general"]["maxAttempts"] == 1
    assert settings["tools"] == {"core": list(TOOLS)}
    assert (settings["telemetry"]["enabled"], settings["privacy"]["usageStatisticsEnabled"]) == (False, False)


def test_a_missing_package_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Gemini CLI 0\.61\.0 is not installed.*make agents"):
        GeminiCLI(binary=str(tmp_path / "gemini.js")).check()
