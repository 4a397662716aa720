from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from longrein.errors import ConfigError
from longrein.harnesses.mini_swe_agent import MiniSweAgent, Mode
from longrein.types import Task
from tests.harnesses.packages import ENDPOINT, TASK, in_place, install_python_agent


@pytest.mark.parametrize(
    ("mode", "name", "built_in", "model_class"),
    [
        ("tool", "mini_swe_agent", "mini.yaml", "litellm"),
        ("text", "mini_swe_agent_text", "mini_textbased.yaml", "litellm_textbased"),
    ],
)
def test_launch_is_the_recipe(
    mode: Mode, name: str, built_in: str, model_class: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = install_python_agent(tmp_path, "mini-swe-agent/bin/mini", monkeypatch)
    harness = pickle.loads(pickle.dumps(MiniSweAgent(mode=mode)))
    harness.check()
    assert harness.name == name
    launch = harness.launch(TASK, ENDPOINT)
    assert launch.argv == (
        *(str(script.parent / "python"), str(script), "--yolo", "--exit-immediately"),
        *("-c", built_in, "-c", "$HOME/.mini-swe-agent/run.yaml", "-o", "$HOME/.mini-swe-agent/run.traj.json"),
    )
    assert launch.readonly_mounts == (in_place(script.parents[1]), in_place("/opt/base"))
    settings = yaml.safe_load(launch.files[".mini-swe-agent/run.yaml"])
    assert settings["run"] == {"task": TASK.prompt}
    assert settings["model"]["model_class"] == model_class
    assert settings["model"]["model_name"] == "openai/policy"
    assert settings["model"]["model_kwargs"]["api_base"] == "http://127.0.0.1:4321/s3cret/v1"
    assert settings["model"]["model_kwargs"]["max_retries"] == 0
    assert launch.env["OPENAI_API_KEY"] == "s3cret"
    assert launch.env["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] == "1"


@given(prompt=st.text(st.characters(codec="utf-8")))
def test_any_prompt_arrives_as_it_is(prompt: str) -> None:
    launch = MiniSweAgent(binary="/none/bin/mini").launch(Task(task_id="t", prompt=prompt), ENDPOINT)
    assert yaml.safe_load(launch.files[".mini-swe-agent/run.yaml"])["run"] == {"task": prompt}


def test_a_missing_package_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mini-swe-agent 2\.4\.6 is not installed.*make agents"):
        MiniSweAgent(binary=str(tmp_path / "bin" / "mini")).check()
