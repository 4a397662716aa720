"""Run file -> parts: what only the plug-ins can know is checked first, and overrides reach what they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from longrein.cli import parts
from longrein.cli.curve import draw_curve
from longrein.cli.run_directory import set_aside
from longrein.config import RunConfig, load_config
from longrein.errors import ConfigError
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


def test_all_plug_in_problems_come_in_one_message(tmp_path: Path, model: Path) -> None:
    bad = config(tmp_path, model, '[tasks]\nfamilies = ["nonesuch"]\n')
    with pytest.raises(ConfigError, match=r"(?s)run\.toml: 1 problem.*tasks\.families = .*nonesuch"):
        parts.checked(bad, "run.toml")


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
