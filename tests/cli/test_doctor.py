"""``longrein doctor`` as a user runs it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from longrein.cli.doctor import COMMAND
from longrein.errors import ConfigError
from tests import tiny

REPO = Path(__file__).parents[2]
NAMES = [
    *("engine", "tokenizer", "model", "logprobs", "sampling_defaults", "context", "stops", "prefix_cache"),
    *("weight_sync", "template", "sandbox_network", "sandbox_files", "sandbox_processes", "sandbox_writes"),
    *("sandbox_limits", "agent", "tasks"),
]


def write_run(folder: Path, model: Path) -> Path:
    path = folder / "run.toml"
    path.write_text(
        f"""
output_dir = "out"
[model]
path = "{model}"
context_length = 1024
[tasks]
families = ["write_number"]
train_count = 6
eval_count = 2
[harness]
name = "command"
script = "{REPO / "examples" / "bash_agent.py"}"
[rollout]
max_tokens = 110
"""
    )
    return path


def doctor(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    COMMAND.configure(parser)
    return COMMAND.run(parser.parse_args(arguments))


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}


def test_a_sound_setup_passes_every_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, tiny.save_model(tmp_path / "model"))
    capsys.readouterr()
    code = doctor(str(path), "--json")
    found = findings(capsys)
    assert {name: finding["status"] for name, finding in found.items()} == dict.fromkeys(NAMES, "pass"), found
    assert code == 0
    assert not (tmp_path / "out").exists()


def test_a_run_that_trains_adapters_has_one_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, tiny.save_model(tmp_path / "model"))
    capsys.readouterr()
    assert doctor(str(path), "--json", "--only=weight_sync", "--set", "train.lora.rank=4") == 0
    assert "an adapter changed them by" in findings(capsys)["weight_sync"]["seen"]


def test_an_engine_that_does_not_start_is_one_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What needs it cannot be told; what does not is examined."""
    model = tiny.save_model(tmp_path / "model")
    (model / "model.safetensors").unlink()
    capsys.readouterr()
    assert doctor(str(write_run(tmp_path, model)), "--json", "--only=logprobs", "--only=template") == 1
    found = findings(capsys)
    assert [finding["status"] for finding in found.values()] == ["fail", "cannot tell", "pass"]
    assert "model.safetensors" in found["engine"]["seen"]
    assert found["logprobs"]["fix"] == "mend 'engine' first"


def test_a_template_that_is_missing_is_one_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.save_model(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    capsys.readouterr()
    assert doctor(str(write_run(tmp_path, model)), "--json", "--only=engine", "--only=template") == 1
    found = findings(capsys)
    assert found["engine"]["status"] == "cannot tell"
    assert "has no chat template" in found["template"]["seen"]
    assert doctor(str(tmp_path / "run.toml"), "--json", "--only=engine") == 1, "told whether it was chosen or not"
    assert findings(capsys)["template"]["status"] == "fail"


@pytest.mark.filterwarnings("ignore:sandboxes are plain subprocesses")
def test_the_table_shows_the_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, tiny.save_model(tmp_path / "model"))
    assert doctor(str(path), "--only=sandbox_files", "--set", "sandbox.backend=subprocess") == 1
    shown = capsys.readouterr().out
    assert "fail" in shown
    assert "fix: install bubblewrap" in shown


def test_the_checks_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path, tiny.save_model(tmp_path / "model"))
    assert doctor(str(path), "--list") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES)
    with pytest.raises(ConfigError, match="no check is named 'blood'; known: engine, tokenizer"):
        doctor(str(path), "--only=blood")
