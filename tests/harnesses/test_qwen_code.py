from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from longrein.errors import ConfigError
from longrein.harnesses.qwen_code import TOOLS, QwenCode
from tests.harnesses.packages import ENDPOINT, TASK, in_place, install_node_agent

ENTRY = "node_modules/@qwen-code/qwen-code/cli.js"


def test_launch_is_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = install_node_agent(tmp_path, ENTRY, monkeypatch)
    harness = pickle.loads(pickle.dumps(QwenCode()))
    harness.check()
    launch = harness.launch(TASK, ENDPOINT)
    node = tmp_path / ".agents/bin/node"
    assert launch.argv == (str(node), "--expose-gc", str(script), "--yolo", "--output-format", "stream-json")
    assert launch.stdin == TASK.prompt.encode()
    assert launch.readonly_mounts == (in_place(node), in_place(tmp_path / ".agents/node_modules"))
    assert launch.env["OPENAI_BASE_URL"] == "http://127.0.0.1:4321/s3cret/v1"
    assert (launch.env["OPENAI_API_KEY"], launch.env["OPENAI_MODEL"]) == ("s3cret", "policy")
    assert launch.files.keys() == {".qwen/settings.json"}
    settings = json.loads(launch.files[".qwen/settings.json"])
    assert settings["security"]["auth"]["selectedType"] == "openai"
    assert (settings["telemetry"]["enabled"], settings["privacy"]["usageStatisticsEnabled"]) == (False, False)
    assert settings["memory"] == {"enableManagedAutoMemory": False, "enableManagedAutoDream": False}
    generation = settings["model"]["generationConfig"]
    assert (generation["maxRetries"], generation["contextWindowSize"]) == (0, 8192)
    assert generation["samplingParams"] == {"max_tokens": 256}


def test_what_it_offers_unasked_is_offered_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_node_agent(tmp_path, ENTRY, monkeypatch)
    by_default, asked = (
        json.loads(harness.launch(TASK, ENDPOINT).files[".qwen/settings.json"])["tools"]
        for harness in (QwenCode(), QwenCode(tools=("agent", "edit")))
    )
    assert by_default["core"] == list(TOOLS)
    assert "agent" in by_default["disabled"]
    assert asked["core"] == ["agent", "edit"]
    assert set(by_default["disabled"]) - set(asked["disabled"]) == {"agent"}


def test_a_missing_package_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Qwen Code 0\.24\.4 is not installed.*make agents"):
        QwenCode(binary=str(tmp_path / "cli.js")).check()
