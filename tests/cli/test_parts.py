"""Run file -> parts: what only the plug-ins can know is checked first, and overrides reach what they name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longrein.cli import parts
from longrein.cli.curve import draw_curve
from longrein.cli.grpo import _worker
from longrein.cli.run_directory import set_aside
from longrein.config import RunConfig
from longrein.engines.local.client import LocalEngineSpec
from longrein.errors import ConfigError
from longrein.rollout.group import harness_reward
from longrein.rollout.overlong import OverlongPunishment
from longrein.run_file import load_config
from tests import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_model(tmp_path_factory.mktemp("model"))


def config(folder: Path, model: Path, more: str = "") -> RunConfig:
    path = folder / "run.toml"
    path.write_text(
        f'output_dir = "out"\n[model]\npath = "{model}"\ncontext_length = 900\n[harness]\nargv = ["true"]\n{more}'
    )
    return load_config(path)


def test_the_run_files_time_limit_overrides_the_tasks(tmp_path: Path, model: Path) -> None:
    assert {task.agent_timeout_s for task in parts.tasks(config(tmp_path, model), "train")} == {120.0}
    limited = config(tmp_path, model, "[rollout]\nagent_timeout_s = 7.0")
    for split in ("train", "test"):
        assert {task.agent_timeout_s for task in parts.tasks(limited, split)} == {7.0}


def test_budgets_reach_the_gateway(tmp_path: Path, model: Path) -> None:
    """By both ways: of the command line's own rollouts and of the worker that trains."""
    limits = {"max_calls": 2, "max_sampled_tokens": 3, "max_session_s": 4.0, "max_context_refusals": 5}
    limits["engine_timeout_s"] = 6.0
    limited = config(tmp_path, model, "[rollout]\n" + "\n".join(f"{name} = {value}" for name, value in limits.items()))
    # Only its address is looked at.
    engine: Any = SimpleNamespace(spec=LocalEngineSpec(socket_path="", model=str(model)))
    worker = _worker(limited, engine)
    for found in (parts.gateway_settings(limited), worker._settings.runtime.gateway):
        assert {name: getattr(found, name) for name in limits} == limits
    worker.stop()


def test_judgement_samples_as_eval_says_and_training_from_the_whole_distribution(tmp_path: Path, model: Path) -> None:
    said = config(tmp_path, model, "[rollout]\ntemperature = 0.8\n[eval]\ntop_p = 0.9\ntop_k = 40\nmin_p = 0.1\n")
    engine = LocalEngineSpec(socket_path="", model=str(model))
    trained, judged = parts.gateway_settings(said), parts.judging_settings(said, engine).gateway
    assert (trained.temperature, trained.top_p, trained.top_k, trained.min_p) == (0.8, 1.0, 0, 0.0)
    assert (judged.temperature, judged.top_p, judged.top_k, judged.min_p) == (0.8, 0.9, 40, 0.1)
    greedy = config(tmp_path, model, "[eval]\ntemperature = 0.0\n")
    assert parts.judging_settings(greedy, engine).gateway.temperature == 0.0


def test_all_plug_in_problems_come_in_one_message(tmp_path: Path, model: Path) -> None:
    bad = config(tmp_path, model, '[tasks]\nfamilies = ["nonesuch"]\n')
    with pytest.raises(ConfigError, match=r"(?s)run\.toml: 1 problem.*tasks\.families = .*nonesuch"):
        parts.checked(bad, "run.toml")


def test_losses_that_cannot_work_are_found_before_the_start(tmp_path: Path, model: Path) -> None:
    bad = config(tmp_path, model, '[train]\nloss = "reinforce"\ndelta = 3.0\n')
    with pytest.raises(ConfigError, match=r"train\.loss = 'reinforce': .*delta has no meaning.*train uncorrected"):
        parts.checked(bad, "run.toml")


def test_adapters_that_fit_nowhere_are_found_before_the_start(tmp_path: Path, model: Path) -> None:
    bad = config(tmp_path, model, '[train.lora]\ntarget_modules = ["q_proj", "wq"]\n')
    with pytest.raises(ConfigError, match=r"(?s)1 problem.*train\.lora = .*target module 'wq' is nowhere"):
        parts.checked(bad, "run.toml")
    assert parts.peft_config(config(tmp_path, model)) is None
    chosen = parts.peft_config(config(tmp_path, model, "[train.lora]\nrank = 4\nalpha = 6\ndropout = 0.1\n"))
    assert (chosen.r, chosen.lora_alpha, chosen.lora_dropout, chosen.target_modules) == (4, 6, 0.1, "all-linear")


def test_long_rollouts_are_punished_if_the_run_file_says_so(tmp_path: Path, model: Path) -> None:
    assert parts.reward_fn(config(tmp_path, model)) is harness_reward
    punished = config(tmp_path, model, "[rollout]\noverlong_max_tokens = 50\noverlong_cache_tokens = 10\n")
    assert parts.reward_fn(punished) == OverlongPunishment(max_tokens=50, cache_tokens=10)


def test_more_context_than_positions_is_found_before_the_start(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "run.toml"
    config(tmp_path, model)
    path.write_text(path.read_text().replace("context_length = 900", "context_length = 4096"))
    with pytest.raises(ConfigError, match=r"model\.context_length = 4096: the model has 1024 positions"):
        parts.checked(load_config(path), str(path))


def test_a_folder_with_one_task_has_none_to_hold_out(tmp_path: Path, model: Path) -> None:
    task = tmp_path / "tasks" / "only"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text('version = "1.0"\n')
    (task / "instruction.md").write_text("do it")
    (task / "tests" / "test.sh").write_text("true")
    alone = config(tmp_path, model, '[tasks]\nsource = "harbor"\nfolder = "tasks"\n')
    with pytest.raises(ConfigError, match=r"tasks\.folder = .*no task left for the test split"):
        parts.checked(alone, "run.toml")


def test_published_tests_can_be_judged_but_not_trained_on(tmp_path: Path, model: Path) -> None:
    (tmp_path / "rows").mkdir()
    row = {"prompt": "p", "tests": {"test.sh": "true"}}
    (tmp_path / "rows" / "test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for _ in range(5)))
    alone = config(tmp_path, model, '[tasks]\nsource = "dataset"\npath = "rows"\n')
    with pytest.raises(ConfigError, match=r"no task left for the train split; .*not held out"):
        parts.checked(alone, "run.toml")
    parts.checked(alone, "run.toml", trains=False)
    assert len(parts.tasks(alone, "test")) == 5 and not parts.tasks(alone, "train", needed=False)


def test_every_task_that_cannot_be_judged_is_named(tmp_path: Path, model: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "p{n}"}}\n' for n in range(4)))
    bad = config(tmp_path, model, '[tasks]\nsource = "jsonl"\npath = "rows.jsonl"\n')
    with pytest.raises(ConfigError, match=r"(?s)tasks\.path = .*4 problems with the tasks") as caught:
        parts.checked(bad, "run.toml")
    assert all(f"task '{n}' has no tests/test.sh" in str(caught.value) for n in range(1, 5))


def test_a_curriculum_that_fits_no_task_is_found_before_the_start(tmp_path: Path, model: Path) -> None:
    bad = config(tmp_path, model, '[tasks.curriculum]\nrule = "pass_rate"\nby = ["topic"]\n')
    with pytest.raises(ConfigError, match="no task has topic in its metadata"):
        parts.checked(bad, "run.toml")


def test_an_earlier_run_is_moved_aside_whole(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert set_aside(run_dir) is None
    for expected in ("run.1", "run.2"):
        run_dir.mkdir()
        (run_dir / "metrics.jsonl").write_text("{}\n")
        moved = set_aside(run_dir)
        assert moved is not None
        assert moved.name == expected
        assert (moved / "metrics.jsonl").exists()
        assert not run_dir.exists()


def test_a_torn_last_line_does_not_spoil_the_curve(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "rew')
    curve = draw_curve(tmp_path, None, None)
    assert curve is not None
    assert curve.stat().st_size > 1000
