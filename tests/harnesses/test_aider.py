from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from longrein.errors import ConfigError
from longrein.harnesses.aider import Aider
from tests.harnesses.packages import ENDPOINT, TASK, in_place, install_python_agent


def test_launch_is_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = install_python_agent(tmp_path, "aider/bin/aider", monkeypatch)
    harness = pickle.loads(pickle.dumps(Aider(edit_format="whole")))
    harness.check()
    launch = harness.launch(TASK, ENDPOINT)
    assert launch.argv[:2] == (str(script.parent / "python"), str(script))
    assert launch.argv[launch.argv.index("--load") + 1] == "$HOME/.longrein/open.txt"
    assert launch.files[".longrein/open.txt"] == b'/add "a/x.py"\n/add "b.py"\n'
    assert {"--yes-always", "--no-git", "--analytics-disable", "--no-check-update"} <= set(launch.argv)
    assert launch.argv[launch.argv.index("--message-file") + 1] == "$HOME/.longrein/message.txt"
    assert launch.readonly_mounts == (in_place(script.parents[1]), in_place("/opt/base"))
    assert launch.files[".longrein/message.txt"] == TASK.prompt.encode()
    (settings,) = json.loads(launch.files[".longrein/settings.yml"])
    assert (settings["name"], settings["edit_format"]) == ("openai/policy", "whole")
    assert settings["extra_params"] == {"max_retries": 0}
    metadata = json.loads(launch.files[".longrein/metadata.json"])["openai/policy"]
    assert (metadata["max_input_tokens"], metadata["max_output_tokens"]) == (8192, 256)
    assert launch.env["OPENAI_API_BASE"] == "http://127.0.0.1:4321/s3cret/v1"
    assert launch.env["OPENAI_API_KEY"] == "s3cret"


def test_a_missing_package_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"aider 0\.86\.2 \(it needs Python 3\.12\) is not installed.*make agents"):
        Aider(binary=str(tmp_path / "bin" / "aider")).check()
