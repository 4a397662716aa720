"""A tracker that is not installed is named before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from longrein import AsyncGRPOConfig
from longrein.errors import ConfigError
from longrein.train import step_config


def test_a_tracker_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(step_config.TRACKERS, "trackio", "no_such_package_anywhere")
    with pytest.raises(ConfigError, match=r"report_to='trackio'.*pip install trackio"):
        AsyncGRPOConfig(output_dir=str(tmp_path), report_to="trackio", use_cpu=True)


def test_one_that_is_there_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(step_config.TRACKERS, "trackio", "json")
    config = AsyncGRPOConfig(output_dir=str(tmp_path), report_to="trackio", project="p", use_cpu=True)
    assert (config.report_to, config.project) == (["trackio"], "p")
