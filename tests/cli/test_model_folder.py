"""Model names become folders: a folder, a hub id that is in the library's cache, or one clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longrein.cli.model_folder import model_folder
from longrein.errors import ConfigError


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert model_folder(str(tmp_path)) == str(tmp_path.resolve())
    with pytest.raises(ConfigError, match="no such folder"):
        model_folder(str(tmp_path / "absent"))


def test_a_hub_id_is_found_in_the_librarys_cache_and_a_missing_one_is_said(tmp_path: Path) -> None:
    """No hub is reachable here: the cache is laid out as the library leaves it after a download."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    script = (
        "from longrein.cli.model_folder import model_folder\n"
        "from longrein.errors import ConfigError\n"
        "print(model_folder('org/tiny'))\n"
        "try:\n    model_folder('org/absent')\n"
        "except ConfigError as error:\n    print('said:', error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found, said = result.stdout.splitlines()
    assert found == str(snapshot)
    assert said.startswith("said: no such folder, and it cannot be had from the hub")
