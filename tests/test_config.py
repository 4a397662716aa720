"""The run file: every mistake is named at once, with file, key, value and fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from longrein.config import load_config
from longrein.errors import ConfigError

GOOD = """
output_dir = "runs/x"
[model]
path = "some/hub-id"
[harness]
argv = ["sh", "-c", "true"]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_a_good_file_has_defaults_and_absolute_paths(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert config.output_dir == str(tmp_path / "runs/x")
    assert config.model.path == "some/hub-id"
    assert config.rollout.num_generations == 8
    (tmp_path / "some" / "hub-id").mkdir(parents=True)
    assert load_config(tmp_path / "run.toml").model.path == str(tmp_path / "some/hub-id")


@pytest.mark.parametrize(
    ("change", "key", "value", "fix"),
    [
        ("[rollout]\nnum_generations = 0", "rollout.num_generations", "0", ">= 2"),
        ('[rollout]\nnum_generations = "8"', "rollout.num_generations", "'8'", "Expected `int`"),
        ("[rollout]\nnum_generation = 8", "rollout.num_generation", "8", "did you mean 'num_generations'"),
        ("[nonsense]\na = 1", "nonsense", "{'a': 1}", "unknown key"),
        ('[tasks]\nsource = "harbor"\nfolder = "nowhere"', "tasks.folder", "nowhere", "no such folder"),
        ('[tasks]\nsource = "harbor"', "tasks.folder", "''", "needs a folder"),
        ("[train]\nlearning_rate = -1.0", "train.learning_rate", "-1.0", "> 0"),
        ("[rollout]\nmax_tokens = 4096", "rollout.max_tokens", "4096", "below model.context_length"),
        ("[eval]\npass_at = [4]", "eval.pass_at", "[4]", "k <= eval.samples"),
        ("[train]\nlearning_rate = inf", "train.learning_rate", "inf", "finite"),
        ("[tasks]\neval_count = 0\n[eval]\nrequire_improvement = true", "eval.require_improvement", "True", "compared"),
        ('[sandbox]\nbackend = "chroot"', "sandbox.backend", "'chroot'", "Invalid enum value"),
    ],
)
def test_a_mistake_names_file_key_value_and_fix(tmp_path: Path, change: str, key: str, value: str, fix: str) -> None:
    path = write(tmp_path, GOOD + change)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert str(path) in message
    assert f"{key} = " in message
    assert value in message
    assert fix in message


def test_all_mistakes_come_in_one_message(tmp_path: Path) -> None:
    path = write(tmp_path, '[model]\npth = "a"\n[rollout]\nnum_generations = 1\nmax_inflight = "x"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    for key in ("output_dir", "model.pth", "model.path", "rollout.num_generations", "rollout.max_inflight"):
        assert f"  {key} = " in str(caught.value)


def test_bad_toml_and_a_missing_file_are_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not valid TOML.*line 1"):
        load_config(write(tmp_path, "output_dir = = 1"))
    with pytest.raises(ConfigError, match="cannot read the run file"):
        load_config(tmp_path / "absent.toml")


def test_overrides_are_checked_like_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert load_config(path, {"train.max_steps": 3}).train.max_steps == 3
    with pytest.raises(ConfigError, match=r"train\.max_steps = 0"):
        load_config(path, {"train.max_steps": 0})


def test_an_override_below_something_that_is_no_table_is_a_problem_like_any_other(tmp_path: Path) -> None:
    path = write(tmp_path, 'output_dir = "x"\nmodel = "foo"\n')
    with pytest.raises(ConfigError, match=r"model = 'foo': must be a table"):
        load_config(path, {"model.path": "bar"})
