"""The run file: every mistake is named at once, with file, key, value and fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from longrein.config import LoraSection
from longrein.errors import ConfigError
from longrein.run_file import load_config
from longrein.types import ROLE_WEIGHTS

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
    assert config.train.roles.weights() == ROLE_WEIGHTS
    (tmp_path / "some" / "hub-id").mkdir(parents=True)
    assert load_config(tmp_path / "run.toml").model.path == str(tmp_path / "some/hub-id")


def test_secrets_are_not_told(tmp_path: Path) -> None:
    wrong = """
[engine]
kind = "vllm"
api_key = "sk-first"
comand = ["vllm", "--api-key", "sk-second", "--port", "8"]
command = ["vllm", "--api-key=sk-third", 3]
env = { VLLM_API_KEY = 123456, OTHER = 7 }
"""
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, GOOD + wrong))
    said = str(caught.value)
    assert "sk-" not in said
    assert "123456" not in said
    assert "engine.comand = ['vllm', '--api-key', '***', '--port', '8']: unknown key; did you mean 'command'?" in said
    assert "'OTHER': 7" in said


def test_all_weights_train_unless_adapters_are_asked_for(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, GOOD)).train.lora is None
    lora = load_config(write(tmp_path, GOOD + "[train.lora]\n")).train.lora
    assert lora == LoraSection(rank=16, alpha=32, dropout=0.0, target_modules=())


def test_the_interpreter_of_a_virtual_environment_stays_the_link_that_it_is(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to("/bin/sh")
    config = load_config(write(tmp_path, GOOD + 'python = "python"\n'))
    assert config.harness.python == str(tmp_path / "python")
    with pytest.raises(ConfigError, match=r"harness\.python = .*elsewhere': no such file"):
        load_config(write(tmp_path, GOOD + 'python = "elsewhere"\n'))


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
        ("[rollout]\noverlong_max_tokens = 500", "rollout.overlong_cache_tokens", "1024", "at most"),
        ("[rollout]\ntop_p = 0.9", "rollout.top_p", "0.9", "must be 1: the trainer's probabilities are of all tokens"),
        ("[rollout]\ntop_k = 50", "rollout.top_k", "50", "give eval.top_k"),
        ("[rollout]\nmin_p = 0.1", "rollout.min_p", "0.1", "give eval.min_p"),
        ("[eval]\ntop_p = 0.0", "eval.top_p", "0.0", "> 0"),
        ("[eval]\npass_at = [4]", "eval.pass_at", "[4]", "k <= eval.samples"),
        ("[train.roles]\nagnet = 1.0", "train.roles.agnet", "1.0", "did you mean 'agent'"),
        ("[train.roles]\nagent = -1.0", "train.roles.agent", "-1.0", ">= 0"),
        ("[train.roles]\nagent = nan", "train.roles.agent", "nan", ">= 0"),
        ("[train.roles]\nagent = 0.0\nsubagent = 0.0\nretry = 0.0", "train.roles", "{", "let some role train"),
        ("[train.lora]\nrank = 0", "train.lora.rank", "0", ">= 1"),
        ("[train.lora]\ndropout = 1.0", "train.lora.dropout", "1.0", "< 1"),
        ("[train.lora]\ntargets = []", "train.lora.targets", "[]", "did you mean 'target_modules'"),
        ("[train]\nlora = true", "train.lora", "True", "must be a table"),
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
